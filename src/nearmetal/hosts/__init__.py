"""What commands run on: this machine, the lab's hypervisor, an ssh host, a Slurm allocation, a fake."""
