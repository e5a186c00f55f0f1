"""Models in a bucket, by name and hash, and on the disks of the machines that run them."""
