"""Training: fine-tuning with the Hugging Face Trainer, and small translation models from scratch."""
