"""What other programs print, one file a program: text in, plain records out; ForeignFileError for anything else."""
