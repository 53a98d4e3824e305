#!/bin/sh
# Runs one attempt of a job: claims it, starts it, records its end. Arguments: its folder; its limit in seconds (0: none).
# The job is `go`, in a session of its own. Every file that is written here is described in layout.py.
umask 077
cd -- "$1" || exit 0 # forgotten: it must not run
limit=$2
signals='HUP INT QUIT TERM USR1 USR2'
again() { # a full disk may have room again
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] && sleep 3
}

# The claim: one atomic create that says who made it. Who finds another's runs nothing. A server of files that answers
# twice may call our own claim somebody else's, so it is read.
boot=$(cat /proc/sys/kernel/random/boot_id)
read -r stat < "/proc/$$/stat"
set -- ${stat##*) }
shift 19
started=$(date +%s)
me=run.$$.$1.$boot.$started
tries=0
until ln -s "$me" claim 2> /dev/null; do
    if found=$(readlink claim) || [ -e claim ] || [ ! -e go ]; then
        [ "$found" = "$me" ] && break
        [ -e go ] || rm -f backend # all of it was fetched and let go: Slurm has just made this file for us
        exit 0
    fi
    again || exit 75 # nobody has it
done
sync . 2> /dev/null

deliver() {
    read -r session 2> /dev/null < session && [ "$session" -gt 1 ] 2> /dev/null || return # -1 is every process of his
    [ -e alone ] && [ "$2" ] && kill -s "$1" "$session" 2> /dev/null && return
    kill -s "$1" -- "-$session" 2> /dev/null || kill -s "$1" "$session" 2> /dev/null
}
runs() { # the process that leads it, and not another that got its number
    read -r session 2> /dev/null < session && read -r stat 2> /dev/null < "/proc/$session/stat" || return 1
    set -- ${stat##*) }
    shift 19
    [ "${born:=$1}" = "$1" ] || return 1
    case ${stat##*) } in [ZX]*) return 1 ;; esac
}
why=- born=
for signal in $signals; do trap "deliver $signal user" "$signal"; done
trap 'why=term' TERM # Slurm's goes to every process of a job

# Who waits for the job must tell a death by a signal from an exit code above 128, as a shell can't, and outlive what is
# sent to all of the job's processes.
if [ "$(awk 'BEGIN { print system("kill -9 $$") }' 2> /dev/null)" = 265 ]; then
    waits='awk'
elif perl -e 1 2> /dev/null; then
    waits='perl'
else
    waits='sh'
fi
reset=
env --default-signal=TERM true 2> /dev/null && reset=--default-signal=$(echo $signals | tr ' ' ,)
export FED_RESET="$reset"
me=$(id -un)
: "${USER:=$me}" "${LOGNAME:=$me}" "${SHELL:=/bin/sh}" "${HOME:=$(getent passwd "$me" | cut -d: -f6)}"
export USER LOGNAME SHELL HOME

# What is written over takes no more room, on a disk that may be full by then.
tries=0
until echo '   ' 2> /dev/null > status; do again || break; done
(
    [ -z "$reset" ] || trap '' $signals
    exec 1<> status
    case $waits in
    awk) exec awk 'BEGIN { print system("exec ./go") }' ;;
    perl) exec perl -e '$s = system("./go"); print $s & 127 ? 256 + ($s & 127) : $s >> 8, "\n"' ;;
    *) ./go; echo $? ;;
    esac
) &
child=$!

if [ "$limit" -gt 0 ]; then
    (
        trap - $signals
        sleep "$limit" || exit # it was ended with the job, and before us
        : > timeout
        deliver TERM
        sleep 30
        deliver KILL
    ) &
fi

while kill -0 "$child" 2> /dev/null; do wait "$child"; done
result=
read -r result 2> /dev/null < status
if [ -z "$result" ]; then # who waited was killed: the job may run on
    while runs; do sleep 1; done
fi
ended=$(date +%s)
deliver KILL # what it left behind

if [ -z "$result" ]; then
    kind=unknown number=0 code=1
elif [ "$result" -ge 256 ]; then
    kind=signal number=$((result & 127)) code=$((128 + number))
else
    kind=code number=$result code=$result
fi
[ -e timeout ] && why=timeout

# What it used, as far as this host tells. `times` says nothing of our children in a pipe, and ends a shell whose disk is
# full; what another shell may print of them ends a subshell only.
used() {
    read -r _ && read -r user system || return
    sum=0
    for time in "$user" "$system"; do # 1m2.345s
        seconds=${time#*m} part=${time#*.}00
        part=${part%"${part#??}"}
        sum=$((sum + ${time%%m*} * 6000 + ${seconds%%.*} * 100 + 1$part - 100))
    done
    echo "$sum"
}
cpu='' memory=''
command times > usage 2> /dev/null && cpu=$(used < usage 2> /dev/null)
IFS=: read -r _ _ group 2> /dev/null < /proc/self/cgroup
case $group in */job_"$SLURM_JOB_ID"/*) # all of the job, where Slurm counts
    read -r memory 2> /dev/null < "/sys/fs/cgroup${group%%"/job_$SLURM_JOB_ID/"*}/job_$SLURM_JOB_ID/memory.peak"
    ;;
esac
node=${SLURMD_NODENAME:-$(uname -n)} slices=$CUDA_VISIBLE_DEVICES
[ "${#node}" -le 64 ] && [ "${#slices}" -le 400 ] || node='' slices=''
case $cpu in *[!0-9]*) cpu='' ;; esac
case $memory in *[!0-9]*) memory='' ;; esac
case $node in *[!A-Za-z0-9._-]*) node='' ;; esac
case $slices in NoDevFiles | *[!A-Za-z0-9,/-]*) slices='' ;; esac
usage="${node:--} ${cpu:--} ${memory:--} ${slices:--}"

record() {
    out=$(wc -c < stdout) && err=$(wc -c < stderr) || out=0 err=0
    echo "$kind $number $started $ended $((out)) $((err)) $why $usage" > exit.part && sync exit.part && mv -f exit.part exit
}
tries=0
until record 2> /dev/null; do again || exit 1; done
sync . 2> /dev/null
if [ "$limit" -gt 0 ]; then # the guard of the limit, and its sleep
    trap '' TERM
    kill -s TERM 0
fi
exit "$code"
