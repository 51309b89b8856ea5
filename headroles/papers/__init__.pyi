from .reproduction import reproduce as reproduce
