//! Calls methods of the official Rust client, as the test asks on standard input.
//!
//! One argument: the server's address. Prints the names of all methods, then one JSON line for each line that it reads.
//! The test compares the names with the client's own source.

#![allow(deprecated)]

use std::io::{self, BufRead};

use serde::{de::DeserializeOwned, Deserialize, Serialize};
use serde_json::{json, Map, Value};
use svix::{api::*, error::Error};

#[derive(Deserialize)]
struct Task {
    token: String,
    method: String,
    path: Vec<String>,
    body: Value,
    options: Map<String, Value>,
}

impl Task {
    fn path(&mut self) -> String {
        self.path.remove(0)
    }

    fn body<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_value(self.body.clone())
    }

    fn option<T: DeserializeOwned>(&self, name: &str) -> serde_json::Result<Option<T>> {
        let given = self.options.iter().find(|(key, _)| snake(key) == name);
        given.map(|(_, value)| serde_json::from_value(value.clone())).transpose()
    }
}

fn snake(name: &str) -> String {
    name.chars()
        .map(|letter| if letter.is_uppercase() { format!("_{}", letter.to_lowercase()) } else { letter.to_string() })
        .collect()
}

fn answer<T: Serialize>(result: Result<T, Error>) -> Value {
    match result {
        Ok(value) => json!({ "value": value }),
        Err(Error::Http(error)) if error.payload.is_some() => {
            json!({ "status": error.status.as_u16(), "error": error.payload })
        }
        Err(Error::Validation(error)) if error.payload.is_some() => {
            json!({ "status": error.status.as_u16(), "error": error.payload })
        }
        Err(error) => json!({ "failure": error.to_string() }),
    }
}

macro_rules! options {
    ($task:ident, $kind:ident { $($field:ident),* }) => {
        Some($kind { $($field: $task.option(stringify!($field))?,)* ..Default::default() })
    };
}

macro_rules! methods {
    ($client:ident, $task:ident; $($name:literal => $call:expr,)*) => {
        const NAMES: &[&str] = &[$($name),*];

        async fn call($client: &Svix, $task: &mut Task) -> serde_json::Result<Value> {
            Ok(match $task.method.clone().as_str() {
                $($name => answer($call.await),)*
                other => json!({ "failure": format!("there is no method {other}") }),
            })
        }
    };
}

methods! {
    client, task;
    "application.create" => client.application().create(task.body()?, None),
    "application.delete" => client.application().delete(task.path()),
    "application.get" => client.application().get(task.path()),
    "application.get_or_create" => client.application().get_or_create(task.body()?, None),
    "application.list" => client.application().list(options!(task, ApplicationListOptions { limit, iterator, order })),
    "application.patch" => client.application().patch(task.path(), task.body()?),
    "application.upsert" => client.application().upsert(task.path(), task.body()?),
    "authentication.app_portal_access" => client.authentication().app_portal_access(task.path(), task.body()?, None),
    "authentication.expire_all" => client.authentication().expire_all(task.path(), task.body()?, None),
    "authentication.get_stream_poller_token" => client.authentication().get_stream_poller_token(
        task.path(), task.path(),
    ),
    "authentication.logout" => client.authentication().logout(None),
    "authentication.rotate_stream_poller_token" => client.authentication().rotate_stream_poller_token(
        task.path(), task.path(), task.body()?, None,
    ),
    "authentication.stream_expire_all" => client.authentication().stream_expire_all(task.path(), task.body()?, None),
    "authentication.stream_logout" => client.authentication().stream_logout(None),
    "authentication.stream_portal_access" => client.authentication().stream_portal_access(
        task.path(), task.body()?, None,
    ),
    "authentication.whoami" => client.authentication().whoami(),
    "autoconfig_subscription.create" => client.autoconfig_subscription().create(task.path(), task.body()?, None),
    "autoconfig_subscription.delete" => client.autoconfig_subscription().delete(task.path(), task.path()),
    "autoconfig_subscription.rotate" => client.autoconfig_subscription().rotate(
        task.path(), task.path(), task.body()?, None,
    ),
    "background_task.get" => client.background_task().get(task.path()),
    "background_task.list" => client.background_task().list(options!(task, BackgroundTaskListOptions { task })),
    "connector.create" => client.connector().create(task.body()?, None),
    "connector.delete" => client.connector().delete(task.path()),
    "connector.get" => client.connector().get(task.path()),
    "connector.list" => client.connector().list(None),
    "connector.patch" => client.connector().patch(task.path(), task.body()?),
    "connector.upsert" => client.connector().upsert(task.path(), task.body()?),
    "destination.create" => client.destination().create(task.path(), task.body()?, None),
    "destination.delete" => client.destination().delete(task.path(), task.path()),
    "destination.get" => client.destination().get(task.path(), task.path()),
    "destination.list" => client.destination().list(task.path(), None),
    "destination.patch" => client.destination().patch(task.path(), task.path(), task.body()?),
    "destination.rotate_secret" => client.destination().rotate_secret(task.path(), task.path(), task.body()?, None),
    "destination.upsert" => client.destination().upsert(task.path(), task.path(), task.body()?),
    "destination.transformation.get" => client.destination().transformation().get(task.path(), task.path()),
    "destination.transformation.patch" => client.destination().transformation().patch(
        task.path(), task.path(), task.body()?,
    ),
    "endpoint.bulk_replay" => client.endpoint().bulk_replay(task.path(), task.path(), task.body()?, None),
    "endpoint.create" => client.endpoint().create(task.path(), task.body()?, None),
    "endpoint.delete" => client.endpoint().delete(task.path(), task.path()),
    "endpoint.get" => client.endpoint().get(task.path(), task.path()),
    "endpoint.get_attempt_stats" => client.endpoint().get_attempt_stats(task.path(), task.path(), None),
    "endpoint.get_headers" => client.endpoint().get_headers(task.path(), task.path()),
    "endpoint.get_secret" => client.endpoint().get_secret(task.path(), task.path()),
    "endpoint.get_stats" => client.endpoint().get_stats(
        task.path(), task.path(), options!(task, EndpointGetStatsOptions { since }),
    ),
    "endpoint.list" => client.endpoint().list(task.path(), None),
    "endpoint.patch" => client.endpoint().patch(task.path(), task.path(), task.body()?),
    "endpoint.patch_headers" => client.endpoint().patch_headers(task.path(), task.path(), task.body()?),
    "endpoint.recover" => client.endpoint().recover(task.path(), task.path(), task.body()?, None),
    "endpoint.replay_missing" => client.endpoint().replay_missing(task.path(), task.path(), task.body()?, None),
    "endpoint.rotate_secret" => client.endpoint().rotate_secret(task.path(), task.path(), task.body()?, None),
    "endpoint.send_example" => client.endpoint().send_example(task.path(), task.path(), task.body()?, None),
    "endpoint.set_headers" => client.endpoint().set_headers(task.path(), task.path(), task.body()?),
    "endpoint.transformation_partial_update" => client.endpoint().transformation_partial_update(
        task.path(), task.path(), task.body()?,
    ),
    "endpoint.upsert" => client.endpoint().upsert(task.path(), task.path(), task.body()?),
    "endpoint.transformation.get" => client.endpoint().transformation().get(task.path(), task.path()),
    "endpoint.transformation.patch" => client.endpoint().transformation().patch(task.path(), task.path(), task.body()?),
    "environment.export" => client.environment().export(None),
    "environment.import" => client.environment().import(task.body()?, None),
    "event_type.create" => client.event_type().create(task.body()?, None),
    "event_type.delete" => client.event_type().delete(task.path(), options!(task, EventTypeDeleteOptions { expunge })),
    "event_type.get" => client.event_type().get(task.path()),
    "event_type.import_openapi" => client.event_type().import_openapi(task.body()?, None),
    "event_type.list" => client.event_type().list(
        options!(task, EventTypeListOptions { include_archived, with_content, limit }),
    ),
    "event_type.patch" => client.event_type().patch(task.path(), task.body()?),
    "event_type.upsert" => client.event_type().upsert(task.path(), task.body()?),
    "health.get" => client.health().get(),
    "ingest.authentication.consumer_portal_access" => client.ingest().authentication().consumer_portal_access(
        task.path(), task.body()?, None,
    ),
    "ingest.endpoint.create" => client.ingest().endpoint().create(task.path(), task.body()?, None),
    "ingest.endpoint.delete" => client.ingest().endpoint().delete(task.path(), task.path()),
    "ingest.endpoint.get" => client.ingest().endpoint().get(task.path(), task.path()),
    "ingest.endpoint.get_headers" => client.ingest().endpoint().get_headers(task.path(), task.path()),
    "ingest.endpoint.get_secret" => client.ingest().endpoint().get_secret(task.path(), task.path()),
    "ingest.endpoint.list" => client.ingest().endpoint().list(task.path(), None),
    "ingest.endpoint.rotate_secret" => client.ingest().endpoint().rotate_secret(
        task.path(), task.path(), task.body()?, None,
    ),
    "ingest.endpoint.set_headers" => client.ingest().endpoint().set_headers(task.path(), task.path(), task.body()?),
    "ingest.endpoint.upsert" => client.ingest().endpoint().upsert(task.path(), task.path(), task.body()?),
    "ingest.endpoint.transformation.get" => client.ingest().endpoint().transformation().get(task.path(), task.path()),
    "ingest.endpoint.transformation.patch" => client.ingest().endpoint().transformation().patch(
        task.path(), task.path(), task.body()?,
    ),
    "ingest.source.create" => client.ingest().source().create(task.body()?, None),
    "ingest.source.delete" => client.ingest().source().delete(task.path()),
    "ingest.source.get" => client.ingest().source().get(task.path()),
    "ingest.source.list" => client.ingest().source().list(None),
    "ingest.source.rotate_token" => client.ingest().source().rotate_token(task.path(), None),
    "ingest.source.upsert" => client.ingest().source().upsert(task.path(), task.body()?),
    "integration.create" => client.integration().create(task.path(), task.body()?, None),
    "integration.delete" => client.integration().delete(task.path(), task.path()),
    "integration.get" => client.integration().get(task.path(), task.path()),
    "integration.list" => client.integration().list(task.path(), None),
    "integration.rotate_key" => client.integration().rotate_key(task.path(), task.path(), None),
    "integration.update" => client.integration().update(task.path(), task.path(), task.body()?),
    "message.bulk_expunge_content" => client.message().bulk_expunge_content(task.path(), task.body()?, None),
    "message.create" => client.message().create(
        task.path(), task.body()?, options!(task, MessageCreateOptions { with_content, idempotency_key }),
    ),
    "message.expunge_all_contents" => client.message().expunge_all_contents(task.path(), None),
    "message.expunge_content" => client.message().expunge_content(task.path(), task.path()),
    "message.get" => client.message().get(task.path(), task.path(), options!(task, MessageGetOptions { with_content })),
    "message.list" => client.message().list(
        task.path(), options!(task, MessageListOptions { with_content, channel, event_types }),
    ),
    "message.precheck" => client.message().precheck(task.path(), task.body()?, None),
    "message.poller.consumer_poll" => client.message().poller().consumer_poll(
        task.path(), task.path(), task.path(), None,
    ),
    "message.poller.consumer_seek" => client.message().poller().consumer_seek(
        task.path(), task.path(), task.path(), task.body()?, None,
    ),
    "message.poller.poll" => client.message().poller().poll(task.path(), task.path(), None),
    "message_attempt.expunge_content" => client.message_attempt().expunge_content(
        task.path(), task.path(), task.path(),
    ),
    "message_attempt.get" => client.message_attempt().get(task.path(), task.path(), task.path(), None),
    "message_attempt.list_attempted_destinations" => client.message_attempt().list_attempted_destinations(
        task.path(), task.path(), None,
    ),
    "message_attempt.list_attempted_messages" => client.message_attempt().list_attempted_messages(
        task.path(), task.path(), options!(task, MessageAttemptListAttemptedMessagesOptions { status }),
    ),
    "message_attempt.list_by_endpoint" => client.message_attempt().list_by_endpoint(
        task.path(), task.path(), options!(task, MessageAttemptListByEndpointOptions { status, with_content }),
    ),
    "message_attempt.list_by_msg" => client.message_attempt().list_by_msg(
        task.path(), task.path(), options!(task, MessageAttemptListByMsgOptions { status_code_class, endpoint_id, with_content }),
    ),
    "message_attempt.resend" => client.message_attempt().resend(task.path(), task.path(), task.path(), None),
    "operational_webhook.endpoint.create" => client.operational_webhook().endpoint().create(task.body()?, None),
    "operational_webhook.endpoint.delete" => client.operational_webhook().endpoint().delete(task.path()),
    "operational_webhook.endpoint.get" => client.operational_webhook().endpoint().get(task.path()),
    "operational_webhook.endpoint.get_headers" => client.operational_webhook().endpoint().get_headers(task.path()),
    "operational_webhook.endpoint.get_secret" => client.operational_webhook().endpoint().get_secret(task.path()),
    "operational_webhook.endpoint.list" => client.operational_webhook().endpoint().list(None),
    "operational_webhook.endpoint.rotate_secret" => client.operational_webhook().endpoint().rotate_secret(
        task.path(), task.body()?, None,
    ),
    "operational_webhook.endpoint.set_headers" => client.operational_webhook().endpoint().set_headers(
        task.path(), task.body()?,
    ),
    "operational_webhook.endpoint.upsert" => client.operational_webhook().endpoint().upsert(task.path(), task.body()?),
    "statistics.aggregate_app_stats" => client.statistics().aggregate_app_stats(task.body()?, None),
    "statistics.aggregate_event_types" => client.statistics().aggregate_event_types(),
    "streaming.sink_headers_get" => client.streaming().sink_headers_get(task.path(), task.path()),
    "streaming.sink_headers_patch" => client.streaming().sink_headers_patch(task.path(), task.path(), task.body()?),
    "streaming.event_type.create" => client.streaming().event_type().create(task.body()?, None),
    "streaming.event_type.delete" => client.streaming().event_type().delete(task.path(), None),
    "streaming.event_type.get" => client.streaming().event_type().get(task.path()),
    "streaming.event_type.list" => client.streaming().event_type().list(None),
    "streaming.event_type.patch" => client.streaming().event_type().patch(task.path(), task.body()?),
    "streaming.event_type.upsert" => client.streaming().event_type().upsert(task.path(), task.body()?),
    "streaming.events.create" => client.streaming().events().create(task.path(), task.body()?, None),
    "streaming.events.get" => client.streaming().events().get(task.path(), task.path(), None),
    "streaming.sink.create" => client.streaming().sink().create(task.path(), task.body()?, None),
    "streaming.sink.delete" => client.streaming().sink().delete(task.path(), task.path()),
    "streaming.sink.get" => client.streaming().sink().get(task.path(), task.path()),
    "streaming.sink.get_secret" => client.streaming().sink().get_secret(task.path(), task.path()),
    "streaming.sink.list" => client.streaming().sink().list(task.path(), None),
    "streaming.sink.patch" => client.streaming().sink().patch(task.path(), task.path(), task.body()?),
    "streaming.sink.rotate_secret" => client.streaming().sink().rotate_secret(
        task.path(), task.path(), task.body()?, None,
    ),
    "streaming.sink.upsert" => client.streaming().sink().upsert(task.path(), task.path(), task.body()?),
    "streaming.sink.transformation.get" => client.streaming().sink().transformation().get(task.path(), task.path()),
    "streaming.sink.transformation.patch" => client.streaming().sink().transformation().patch(
        task.path(), task.path(), task.body()?,
    ),
    "streaming.stream.create" => client.streaming().stream().create(task.body()?, None),
    "streaming.stream.delete" => client.streaming().stream().delete(task.path()),
    "streaming.stream.get" => client.streaming().stream().get(task.path()),
    "streaming.stream.list" => client.streaming().stream().list(None),
    "streaming.stream.patch" => client.streaming().stream().patch(task.path(), task.body()?),
    "streaming.stream.upsert" => client.streaming().stream().upsert(task.path(), task.body()?),
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let address = std::env::args().nth(1).expect("the server's address");
    println!("{}", json!(NAMES));
    for line in io::stdin().lock().lines() {
        let mut task: Task = serde_json::from_str(&line.unwrap()).unwrap();
        let options = SvixOptions { server_url: Some(address.clone()), ..Default::default() };
        let client = Svix::new(task.token.clone(), Some(options));
        let answer = call(&client, &mut task).await;
        println!("{}", answer.unwrap_or_else(|error| json!({ "failure": error.to_string() })));
    }
}
