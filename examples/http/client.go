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
	"strings"
	"time"
)

// ask sends a request until the hub answers it, now or later; it ends the program if the hub refuses it.
func ask(method, url, body string) *http.Response {
	for ; ; time.Sleep(200 * time.Millisecond) {
		request, _ := http.NewRequest(method, url, strings.NewReader(body))
		request.Header.Set("content-type", "application/json")
		request.Header.Set("authorization", "Bearer "+os.Getenv("SEJ_TOKEN")) // a hub without tokens ignores it
		switch answer, err := http.DefaultClient.Do(request); {
		case err != nil: // the hub is away
		case answer.StatusCode == 200:
			return answer
		case answer.StatusCode < 500 && answer.StatusCode != 429:
			answer.Write(log.Writer())
			os.Exit(1)
		default:
			answer.Body.Close()
		}
	}
}

func main() {
	command, url, offset := os.Args[1], os.Args[2], 0
	fmt.Sscan(os.Args[3], &offset)
	for lines := bufio.NewScanner(os.Stdin); command == "put" && lines.Scan(); offset++ {
		body, _ := json.Marshal(map[string]string{"value": lines.Text()})
		ask("POST", fmt.Sprintf("%s?offset=%d", url, offset), string(body)).Body.Close() // a repeat is stored once
	}
	for command == "follow" {
		answer := ask("GET", fmt.Sprintf("%s/events?offset=%d", url, offset), "")
		next, lines := offset, bufio.NewReader(answer.Body)
		for line, err := lines.ReadString('\n'); err == nil; line, err = lines.ReadString('\n') {
			if _, err := fmt.Sscanf(line, "id: %d", &next); err == nil || !strings.HasPrefix(line, "data: ") || next == offset {
				continue // not the data of a message
			}
			var found struct{ Value string }
			json.Unmarshal([]byte(line[6:]), &found)
			if offset = next; found.Value == "" {
				return
			}
			fmt.Println(found.Value)
		}
		answer.Body.Close() // the hub was restarted: continue where it ended
	}
	fmt.Println(offset)
}
