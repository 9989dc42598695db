// Publish a message, bytes and a batch with a generated client: go run . URL
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"example.com/publish/sampleapp"
)

const lines = `{"topic":"readings","key":"kitchen","content":"21.5"}
{"topic":"readings","key":"hall","content":"19"}
`

func main() {
	client, err := sampleapp.NewClientWithResponses(os.Args[1])
	check(err)
	ctx, key, content, logo := context.Background(), "kitchen", "21.5", "logo"

	message := sampleapp.Message{Topic: "readings", Key: &key, Content: &content}
	one, err := client.PublishWithResponse(ctx, nil, message)
	check(err)
	fmt.Println(one.Status(), string(one.Body))

	image := strings.NewReader("\x89PNG\r\n\x1a\n")
	params := &sampleapp.PublishToTopicParams{Key: &logo}
	raw, err := client.PublishToTopicWithBodyWithResponse(
		ctx, "images", params, "application/octet-stream", image)
	check(err)
	fmt.Println(raw.Status(), string(raw.Body))

	// Without "WithResponse", which expects one value of JSON instead of lines.
	batch := strings.NewReader(lines)
	many, err := client.PublishWithBody(ctx, nil, "application/x-ndjson", batch)
	check(err)
	defer many.Body.Close()
	body, err := io.ReadAll(many.Body)
	check(err)
	fmt.Println(many.Status, string(body))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
