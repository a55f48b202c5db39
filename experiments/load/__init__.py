"""A file read, completed, checked and spread over its grid."""
