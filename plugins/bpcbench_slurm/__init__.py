"""The engine `slurm`: every stage is a job of a Slurm cluster, by sbatch, squeue and scancel alone."""
