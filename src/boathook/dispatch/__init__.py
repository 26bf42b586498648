"""Due deliveries become outcomes: the workers that run handlers, and the keeper that tidies up behind them."""
