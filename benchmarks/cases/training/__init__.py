"""Steps of training, beside the same step with other correlations."""
