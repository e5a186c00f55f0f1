"""`diffuserve fleet`: workers on the cluster managers that people have."""
