"""`python -m epe`: the same as the `epe` command, for torchrun and Slurm."""

from epe.cli.main import main

if __name__ == "__main__":
    main()
