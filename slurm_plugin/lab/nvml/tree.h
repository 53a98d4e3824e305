/* The files that a driver shows beside its calls: capability entries under proc/ and device nodes under dev/. */
#ifndef VGPU_SIM_TREE_H
#define VGPU_SIM_TREE_H

#include "state.h"

/* Brings the files of every GPU in line with the state in force, under the lock, and notes that it did.
 * Crash: the note is written last, so whoever comes next does it again. */
void tree_restore(struct sim_file *file);

#endif
