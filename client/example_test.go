package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// say serves one answer, as Holdpoint would give it.
func say(status int, media, body string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		if status == http.StatusTooManyRequests || status == http.StatusConflict {
			w.Header().Set("Retry-After", "7")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
}

// A workflow claims the event before it works: only one execution is told claimed.
func ExampleClient_Claim() {
	s := say(http.StatusCreated, "application/json", `{"outcome":"claimed","run":{"id":"r-1","key":"T-1"},"lease":{"owner":"o-1","version":1}}`)
	defer s.Close()
	c := client.New(s.URL, "hp_…")
	a, err := c.Claim(context.Background(), client.ClaimRequest{Workflow: "ticket-reply", Key: "T-1", Payload: json.RawMessage(`{"text":"Where is my order?"}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.Outcome, a.Run.ID, a.Lease.Version)
	// Output: claimed r-1 1
}

// Another execution has the event: wait as long as the answer says, or leave it to the one that works on it.
func ExampleClient_Claim_busy() {
	s := say(http.StatusConflict, "application/json", `{"outcome":"busy","run":{"id":"r-1"}}`)
	defer s.Close()
	a, err := client.New(s.URL, "hp_…").Claim(context.Background(), client.ClaimRequest{Workflow: "ticket-reply", Key: "T-1", Payload: json.RawMessage(`{}`)})
	fmt.Println(a.Outcome, a.RetryAfter, err)
	// Output: busy 7s <nil>
}

// A model's output becomes a question to people.
func ExampleClient_SubmitDraft() {
	s := say(http.StatusOK, "application/json", `{"outcome":"held","run":{"id":"r-1","state":"awaiting_human"},"approval":{"id":"a-1","page_url":"https://hp.acme.example/console/approvals/a-1"}}`)
	defer s.Close()
	d, err := client.New(s.URL, "hp_…").SubmitDraft(context.Background(), "r-1", client.DraftRequest{
		Work: client.Work{Owner: "o-1", Version: 1}, Output: json.RawMessage(`{"reply":"It left today."}`), Model: holdpoint.Model{Name: "m"}})
	fmt.Println(d.Outcome, d.Approval.PageURL, err)
	// Output: held https://hp.acme.example/console/approvals/a-1 <nil>
}

// A person decides about exactly what they saw.
func ExampleClient_Decide() {
	s := say(http.StatusOK, "application/json", `{"approval":{"id":"a-1","state":"approved"},"run":{"id":"r-1","state":"approved"},"decision":{"decision":"approve"}}`)
	defer s.Close()
	out, err := client.New(s.URL, "hpu_…").Decide(context.Background(), "a-1", client.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: "3667f1…"})
	fmt.Println(out.Approval.State, err)
	// Output: approved <nil>
}

// Errors are typed: decide by the code.
func ExampleRetryAfter() {
	s := say(http.StatusTooManyRequests, "application/problem+json", `{"type":"about:blank","title":"Too Many Requests","status":429,"code":"rate_limited","detail":"Too many calls; wait as long as Retry-After says and call again.","request_id":"r"}`)
	defer s.Close()
	_, err := client.New(s.URL, "hp_…").Runs(context.Background(), client.RunQuery{State: holdpoint.RunApproved})
	var e *holdpoint.Error
	if errors.As(err, &e) && e.Code == holdpoint.CodeRateLimited {
		fmt.Println("wait", client.RetryAfter(err))
	}
	// Output: wait 7s
}
