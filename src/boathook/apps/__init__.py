"""Ready-made apps: complete systems on boathook's public API, each loaded by one line in ``[apps]``.

billing   subscription payments
fleet     a car-rental back office on RentProg's and Umnico's webhooks
music     callbacks of Suno's music generation
cashdesk  a cash-register cabinet that sends webhooks to shops

They share `terminal`, the input and output of commands, and `simulation`, the sending and reporting of simulators.
"""
