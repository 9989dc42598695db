// Publish a message once with net/http, however often it must be sent.
package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// For each attempt; longer than the service waits for its broker.
var client = http.Client{Timeout: 60 * time.Second}

// Send a request with Idempotency-Key until its outcome is known.
func publish(target, key, body string) (*http.Response, string, error) {
	wait := time.Second / 2
	for attempt := 1; ; attempt++ {
		answer, text, err := send(target, key, body)
		if err == nil && !mayPass(answer.StatusCode) || attempt == 8 {
			return answer, text, err
		}
		pause := wait
		if err == nil {
			seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
			if err == nil {
				pause = time.Duration(min(seconds, 60)) * time.Second
			}
		}
		time.Sleep(pause)
		wait *= 2
	}
}

func send(target, key, body string) (*http.Response, string, error) {
	request, err := http.NewRequest("POST", target, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	answer, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer, string(text), err
}

func mayPass(status int) bool {
	switch status {
	case 408, 429, 500, 502, 503, 504:
		return true
	}
	return false
}

func main() {
	service, key := "http://127.0.0.1:8080/", newKey()
	if len(os.Args) > 1 {
		service = os.Args[1]
	}
	if len(os.Args) > 2 {
		key = os.Args[2]
	}
	message := `{"topic": "orders", "key": "17", "content": "paid"}`
	answer, text, err := publish(service+"messages", key, message)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	again := ""
	if answer.Header.Get("Idempotent-Replayed") == "true" {
		again = ", published before"
	}
	fmt.Printf("%d%s: %s", answer.StatusCode, again, text)
}

func newKey() string {
	random := make([]byte, 16)
	rand.Read(random)
	return fmt.Sprintf("%x", random)
}
