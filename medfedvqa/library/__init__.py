"""The functions and classes of `import medfedvqa`: data sets, jobs, runs and results. The commands use them too."""
