// Work through a topic with net/http: pull, do the work, acknowledge.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"
)

type message struct {
	ID      string
	Content string
}

type lease struct {
	Lease    string
	Messages []message
}

var client = http.Client{Timeout: 60 * time.Second}
var group string

// Send a request again while the service is away or busy.
func post(action string, value any) (int, []byte) {
	body, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	for {
		pause := 1
		response, err := client.Post(group+action, "application/json", bytes.NewReader(body))
		if err == nil {
			text, err := io.ReadAll(response.Body)
			response.Body.Close()
			switch response.StatusCode {
			case 429, 502, 503, 504:
				seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
				if err == nil {
					pause = min(seconds, 30)
				}
			default:
				if err == nil {
					return response.StatusCode, text
				}
			}
		}
		time.Sleep(time.Duration(pause) * time.Second)
	}
}

// Do the work of one message; return true when it is done.
func bill(each message) bool {
	fmt.Println(each.ID, each.Content)
	return true
}

func main() {
	service, name, left := "http://127.0.0.1:8080/", "billing", math.MaxInt
	if len(os.Args) > 1 {
		service = os.Args[1]
	}
	if len(os.Args) > 2 {
		name = os.Args[2]
	}
	if len(os.Args) > 3 {
		left, _ = strconv.Atoi(os.Args[3])
	}
	group = service + "topics/orders/groups/" + name + "/"
	for left > 0 {
		status, text := post("pull", map[string]any{"wait": 20})
		if status == 204 {
			continue
		}
		var pulled lease
		if err := json.Unmarshal(text, &pulled); status != 200 || err != nil {
			log.Fatalf("%d: %s", status, text)
		}
		accept := []string{}
		for _, each := range pulled.Messages {
			if bill(each) {
				accept = append(accept, each.ID)
			}
		}
		results := map[string]any{"lease": pulled.Lease, "accept": accept}
		if status, text = post("ack", results); status == 200 {
			left -= len(accept)
		} else if status == 409 {
			// The lease has ended: the messages are given again.
			log.Printf("%s", text)
		} else {
			log.Fatalf("%d: %s", status, text)
		}
	}
}
