module boathook.test/client

go 1.21

require github.com/svix/svix-webhooks v1.99.1

require github.com/google/uuid v1.6.0 // indirect
