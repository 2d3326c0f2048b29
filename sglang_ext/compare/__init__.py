"""What differs between two servers, or between one and a record of an earlier one: `sglang-ext diff`."""
