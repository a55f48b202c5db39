"""Everything a user touches: the file, the commands, runs and studies, figures and pages."""
