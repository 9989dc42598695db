// Publish a batch, the body of a webhook and a tombstone with net/http.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

type Message struct {
	Topic   string `json:"topic"`
	Key     string `json:"key,omitempty"`
	Content string `json:"content"`
}

// Longer than the service itself waits for its broker.
var client = http.Client{Timeout: 60 * time.Second}

// Send a request, and send it again if it has certainly published nothing.
func send(method, target, contentType, body string) (int, []byte, error) {
	for attempt := 1; ; attempt++ {
		request, err := http.NewRequest(method, target, strings.NewReader(body))
		if err != nil {
			return 0, nil, err
		}
		if contentType != "" {
			request.Header.Set("Content-Type", contentType)
		}
		wait := time.Second
		answer, err := client.Do(request)
		if err == nil {
			text, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			again := answer.StatusCode == 429 || answer.StatusCode == 503
			if err != nil || !again || attempt == 10 {
				return answer.StatusCode, text, err
			}
			seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
			if err == nil {
				wait = time.Duration(min(seconds, 60)) * time.Second
			}
		} else if !neverConnected(err) || attempt == 10 {
			// The request may have been published.
			return 0, nil, err
		}
		time.Sleep(wait)
	}
}

func neverConnected(err error) bool {
	var failure *net.OpError
	return errors.As(err, &failure) && failure.Op == "dial"
}

// Publish messages in one request; return the answer's line for each of them.
func publishMany(service string, messages []Message) ([]string, error) {
	var lines strings.Builder
	for _, message := range messages {
		line, err := json.Marshal(message)
		if err != nil {
			return nil, err
		}
		lines.Write(append(line, '\n'))
	}
	target := service + "messages"
	status, text, err := send("POST", target, "application/x-ndjson", lines.String())
	if err == nil && status != 200 {
		// With "results" if some of the messages were published.
		err = fmt.Errorf("%d %s", status, text)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n"), err
}

func main() {
	service := "http://127.0.0.1:8080/"
	if len(os.Args) > 1 {
		service = os.Args[1]
	}
	lines, err := publishMany(service, []Message{
		{Topic: "readings", Key: "kitchen", Content: "21.5"},
		{Topic: "readings", Key: "hall", Content: "19"},
	})
	fmt.Println(len(lines), err)

	raw := service + "topics/webhooks?key=shop"
	status, text, err := send("POST", raw, "application/json", `{"order": 17}`)
	fmt.Print(status, " ", err, " ", string(text))

	tombstone := service + "topics/readings?key=" + url.QueryEscape("hall")
	status, text, err = send("DELETE", tombstone, "", "")
	fmt.Print(status, " ", err, " ", string(text))
}
