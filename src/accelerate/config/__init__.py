"""What a job is asked to be: declarations of settings, the files that hold them, and the public plugin classes."""
