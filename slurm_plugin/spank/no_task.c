/*
 * vgpu-no-task: the TaskProlog of gateways. A task that gets as far as this one got past the plugin: Slurm runs it first,
 * with the user's environment, and no task after it has failed. So it is static: no library of the user's is loaded.
 */
int main(void)
{
    return 1;
}
