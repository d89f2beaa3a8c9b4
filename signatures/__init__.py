"""What each LM call is asked, and nothing else."""
