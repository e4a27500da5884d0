"""Fixed windows and matching by softmax beside other ways to compute them."""
