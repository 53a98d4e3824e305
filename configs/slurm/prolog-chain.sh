# Prolog and Epilog: folders, from which Slurm runs every file in order. The pool's prolog comes last, so that a node
# your checks refuse binds nothing; its epilog comes last too, so that what your cleaning ends no longer holds a slice.
#   slurm.conf:
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
#   on each node:
ln -s /usr/libexec/vgpu/vgpu-prolog /etc/slurm/prolog.d/90-vgpu-prolog
ln -s /usr/libexec/vgpu/vgpu-epilog /etc/slurm/epilog.d/90-vgpu-epilog

# Or, at the end of the one script you have (both always end with 0, so they never drain a node):
/usr/libexec/vgpu/vgpu-prolog
/usr/libexec/vgpu/vgpu-epilog

# TaskProlog: Slurm knows one. At the end of yours (what it prints, such as `export CUDA_VISIBLE_DEVICES=...`, goes to
# Slurm with your own; it fails only where a job would run without the slice it asked for):
/usr/libexec/vgpu/vgpu-taskprolog || exit 1
