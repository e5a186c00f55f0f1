"""`diffuserve doctor`: facts of a machine, and checks of them."""
