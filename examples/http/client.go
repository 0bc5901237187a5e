// A client of `sej hub serve --http`: go run client.go put|follow URL OFFSET
// put sends each line of its input once, in order, from an offset on; follow prints values until an empty one.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

type row struct {
	Value   string `json:"value"`
	Message string `json:"message,omitempty"`
}

// ask sends a request until the hub answers it, now or later; it ends the program if the hub refuses it.
func ask(method, url, body string) *http.Response {
	for ; ; time.Sleep(200 * time.Millisecond) {
		request, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		request.Header.Set("content-type", "application/json")
		if token := os.Getenv("SEJ_TOKEN"); token != "" {
			request.Header.Set("authorization", "Bearer "+token)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			continue
		}
		if answer.StatusCode == 200 {
			return answer
		}
		var refused row
		json.NewDecoder(answer.Body).Decode(&refused)
		answer.Body.Close()
		if answer.StatusCode < 500 && answer.StatusCode != 429 {
			log.Fatal(refused.Message)
		}
	}
}

func put(url string, offset int) int {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); offset++ {
		body, _ := json.Marshal(row{Value: lines.Text()})
		ask("POST", fmt.Sprintf("%s?offset=%d", url, offset), string(body)).Body.Close() // a repeat is stored once
	}
	return offset
}

func follow(url string, offset int) {
	for {
		answer := ask("GET", fmt.Sprintf("%s/events?offset=%d", url, offset), "")
		next := offset
		lines := bufio.NewReader(answer.Body)
		for line, err := lines.ReadString('\n'); err == nil; line, err = lines.ReadString('\n') {
			if id := strings.TrimPrefix(line, "id: "); id != line {
				next, _ = strconv.Atoi(strings.TrimSpace(id))
			} else if data := strings.TrimPrefix(line, "data: "); data != line && next > offset {
				var found row
				json.Unmarshal([]byte(data), &found)
				offset = next
				if found.Value == "" {
					return
				}
				fmt.Println(found.Value)
			}
		}
		answer.Body.Close() // the hub was restarted: continue where it ended
	}
}

func main() {
	offset, _ := strconv.Atoi(os.Args[3])
	if os.Args[1] == "put" {
		fmt.Println(put(os.Args[2], offset))
	} else {
		follow(os.Args[2], offset)
	}
}
