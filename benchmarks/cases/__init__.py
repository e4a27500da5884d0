"""What is measured: a folder for each subject; its ``command.py`` declares the options and the cases."""
