/*
 * A proxy's hello to the daemon: fields of a tag (one byte), a length (four, big-endian) and so many bytes.
 * The gateway plugin knows what the job is and writes the FACTS; the proxy adds what only it knows, at every hello anew.
 */
#ifndef VGPU_HELLO_H
#define VGPU_HELLO_H

enum tag {
    VERSION = 1,
    JOB = 2,           /* FACT */
    ARRAY = 3,         /* FACT */
    TASK = 4,          /* FACT, of an array's task alone */
    RESTARTS = 5,      /* FACT */
    NODE = 6,          /* FACT */
    FOLDER = 7,        /* where the job was started */
    UMASK = 8,         /* in octal */
    STDOUT_SIZE = 9,   /* of the file now, 0 when it is none */
    STDERR_SIZE = 10,
    JOINED = 11,       /* both are one file */
    SCRIPT = 12,
    ARGUMENT = 13,     /* FACT, repeated */
    ENVIRONMENT = 14,  /* FACT, repeated: NAME=VALUE */
    LIMIT = 15,        /* FACT, repeated: NAME SOFT HARD, -1: none told */
    REGULAR = 16,      /* stdout is a regular file */
    STDOUT_AT = 17,    /* bytes of the job's stream that this proxy has written; not before its first welcome */
    STDERR_AT = 18,
    OWN = 19,          /* bytes of this proxy's remarks, which are in stderr's file */
    STDIN = 20,        /* the path of the file that the job reads */
};

#define HELLO_VERSION "1"
#define MOST_HELLO (12u << 20) /* bytes */
#define FACTS_FD 3             /* open in the proxy from its start */
#define SCRIPT_FD 4

#endif
