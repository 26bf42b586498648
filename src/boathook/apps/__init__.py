"""Ready-made apps: whole systems on boathook's public API, each loaded by one line under ``[apps]``.

billing   subscription payments
fleet     a car-rental back office on RentProg's and Umnico's webhooks
music     callbacks of Suno's music generation
cashdesk  a cash-register cabinet that sends webhooks to shops

They share how commands ask and print (`terminal`), and what their simulators send, wait for and report (`trials`).
"""
