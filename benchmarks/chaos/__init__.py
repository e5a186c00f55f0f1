"""Jobs while processes are killed: nothing that was accepted may be lost or published twice."""
