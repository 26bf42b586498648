"""Code examples that verify a message in each language, with the libraries of Standard Webhooks.

Python, JavaScript, Go and Java were run with the versions of November 2026, and Rust was compiled; Ruby and PHP follow
the source of their libraries.
"""

from typing import Final

import msgspec


class VerificationExample(msgspec.Struct, frozen=True):
    """The verification of a message in one language."""

    language: str
    install: str
    """The command or dependency that installs the library."""
    code: str
    """It reads the secret from the environment variable WEBHOOK_SECRET."""


VERIFICATION_EXAMPLES: Final = (
    VerificationExample(
        "Python",
        "pip install standardwebhooks",
        """\
import os

from standardwebhooks import Webhook

webhook = Webhook(os.environ["WEBHOOK_SECRET"])


def receive(body: bytes, headers: dict[str, str]) -> dict:
    # Raises WebhookVerificationError: respond with 400. The body is the request's, byte for byte.
    return webhook.verify(body, headers)
""",
    ),
    VerificationExample(
        "JavaScript",
        "npm install standardwebhooks",
        """\
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.WEBHOOK_SECRET);

export function receive(body, headers) {
  // Throws WebhookVerificationError: respond with 400. The body is the request's text or Buffer, not parsed JSON.
  return webhook.verify(body, headers);
}
""",
    ),
    VerificationExample(
        "Go",
        "go get github.com/standard-webhooks/standard-webhooks/libraries@v0.0.1",
        """\
package receiver

import (
	"io"
	"net/http"
	"os"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func Receive(w http.ResponseWriter, r *http.Request) {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		http.Error(w, "WEBHOOK_SECRET is not set", http.StatusInternalServerError)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || webhook.Verify(body, r.Header) != nil {
		http.Error(w, "invalid signature", http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
""",
    ),
    VerificationExample(
        "Ruby",
        "gem install standardwebhooks",
        """\
require "standardwebhooks"

WEBHOOK = StandardWebhooks::Webhook.new(ENV.fetch("WEBHOOK_SECRET"))

# In Rails, body is request.raw_post and headers is request.headers.
def receive(body, headers)
  # Raises StandardWebhooks::WebhookVerificationError: respond with 400.
  WEBHOOK.verify(body, headers)
end
""",
    ),
    VerificationExample(
        "PHP",
        "composer require standard-webhooks/standard-webhooks",
        """\
<?php
require 'vendor/autoload.php';

$webhook = new \\StandardWebhooks\\Webhook(getenv('WEBHOOK_SECRET'));
try {
    $event = $webhook->verify(file_get_contents('php://input'), array_change_key_case(getallheaders()));
} catch (\\StandardWebhooks\\Exception\\WebhookVerificationException $error) {
    http_response_code(400);
    exit;
}
""",
    ),
    VerificationExample(
        "Java",
        "com.standardwebhooks:standardwebhooks:1.2.0",
        """\
import com.standardwebhooks.Webhook;
import java.util.List;
import java.util.Map;

class Receiver {
    static void receive(String body, Map<String, List<String>> headers) throws Exception {
        // Throws WebhookVerificationException: respond with 400.
        new Webhook(System.getenv("WEBHOOK_SECRET")).verify(body, headers);
    }
}
""",
    ),
    VerificationExample(
        "Rust",
        "cargo add standardwebhooks@1.0.1 http@1",
        """\
use http::HeaderMap;
use standardwebhooks::{Webhook, WebhookError};

pub fn receive(body: &[u8], headers: &HeaderMap) -> Result<(), WebhookError> {
    let secret = std::env::var("WEBHOOK_SECRET").expect("WEBHOOK_SECRET is set");
    Webhook::new(&secret)?.verify(body, headers) // on an error, respond with 400
}
""",
    ),
)
