"""What `import medfedvqa` offers: data sets, jobs, runs and their results. The command line uses the same functions."""
