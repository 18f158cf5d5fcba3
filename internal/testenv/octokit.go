package testenv

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Example is one webhook delivery as GitHub sent it.
type Example struct {
	Event   string // the X-GitHub-Event header, for example "issues"
	Payload []byte // the body, as stored in the package; the caller may change it
}

// OctokitExamples returns every payload that the npm package @octokit/webhooks-examples holds for api.github.com, in
// its order. A few are equal to each other. scripts/octokit.sh fetches and verifies the package; when it is missing,
// the test fails.
func OctokitExamples(t testing.TB) []Example {
	t.Helper()
	index := filepath.Join(repository(t), ".cache", "octokit", "package", "api.github.com", "index.json")
	body, err := os.ReadFile(index)
	if err != nil {
		t.Fatalf("testenv: no webhook payloads, run scripts/octokit.sh: %v", err)
	}
	var events []struct {
		Name     string            `json:"name"`
		Examples []json.RawMessage `json:"examples"`
	}
	if err := json.Unmarshal(body, &events); err != nil {
		t.Fatalf("testenv: read the webhook payloads: %v", err)
	}
	var examples []Example
	for _, event := range events {
		for _, payload := range event.Examples {
			examples = append(examples, Example{Event: event.Name, Payload: payload})
		}
	}
	if len(examples) == 0 {
		t.Fatalf("testenv: the package of webhook payloads holds none; remove .cache/octokit and run scripts/octokit.sh")
	}
	return examples
}
