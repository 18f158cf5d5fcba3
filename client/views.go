package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/holdpoint/holdpoint"
)

// Approval is an approval with the page that decides it.
type Approval struct {
	holdpoint.Approval
	PageURL string `json:"page_url"`
}

// Effect is an effect with its attempts. Target and Payload are there only for those who may see content.
type Effect struct {
	holdpoint.Effect
	Target     string              `json:"target,omitempty"`
	Payload    json.RawMessage     `json:"payload,omitempty"`
	Planned    bool                `json:"planned,omitempty"` // rendered, not released: it cannot be sent
	AttemptLog []holdpoint.Attempt `json:"attempt_log,omitempty"`
}

// Decision is a decision; Reason is there only for those who may see content.
type Decision struct {
	holdpoint.DecisionRecord
	Reason string `json:"reason,omitempty"`
}

// Step is a step; Result is there only for those who may see content.
type Step struct {
	holdpoint.Step
	Result json.RawMessage `json:"result,omitempty"`
}

// DraftView is a draft; Output and SourceURL are there only for those who may see content.
type DraftView struct {
	holdpoint.Draft
	Output    json.RawMessage `json:"output,omitempty"`
	SourceURL string          `json:"source_url,omitempty"`
}

// Answers are the four questions: was it processed, was it sent, who approved it, what is uncertain.
type Answers struct {
	Processed  string   `json:"processed"`
	Sent       string   `json:"sent"`
	ApprovedBy string   `json:"approved_by"`
	Model      string   `json:"model"`
	Uncertain  []string `json:"uncertain"`
}

// SafeAction is one thing that somebody might want to do, whether it is safe now, and why.
type SafeAction struct {
	Action  string `json:"action"`
	Subject string `json:"subject,omitempty"`
	Allowed bool   `json:"allowed"`
	Why     string `json:"why"`
}

// Run is one run with everything that hangs on it. Content says whether the caller may see content.
type Run struct {
	holdpoint.Run
	Content     bool                      `json:"content"`
	Payload     json.RawMessage           `json:"payload,omitempty"`
	Result      json.RawMessage           `json:"result,omitempty"`
	FailureText string                    `json:"failure_text,omitempty"`
	Drafts      []DraftView               `json:"drafts"`
	Approvals   []Approval                `json:"approvals"`
	Decisions   []Decision                `json:"decisions"`
	Effects     []Effect                  `json:"effects"`
	Steps       []Step                    `json:"steps"`
	Messages    []holdpoint.MessageRecord `json:"messages"`
	Answers     Answers                   `json:"answers"`
	SafeActions []SafeAction              `json:"safe_actions"`
	Now         time.Time                 `json:"now"`
}

// Run gives one run.
func (c *Client) Run(ctx context.Context, id string) (Run, error) {
	return call[Run](ctx, c, http.MethodGet, at("/v1/runs/", id), nil, nil)
}

// RunQuery selects runs; empty fields select all.
type RunQuery struct {
	Key, Workflow, Record, Cursor string
	State                         holdpoint.RunState
	Limit                         int // 1 to 500; 0 means 50
}

// RunPage is one page of runs, newest first; Next is the next page's cursor, "" at the end.
type RunPage struct {
	Runs []holdpoint.Run `json:"runs"`
	Next string          `json:"next_cursor,omitempty"`
}

// Runs lists runs.
func (c *Client) Runs(ctx context.Context, q RunQuery) (RunPage, error) {
	return call[RunPage](ctx, c, http.MethodGet, "/v1/runs", given("key", q.Key, "workflow", q.Workflow, "record", q.Record, "state", string(q.State),
		"cursor", q.Cursor, "limit", count(q.Limit)), nil)
}

// Evidence gives a run's events in order; runID "" gives those of the tenant that belong to no run.
func (c *Client) Evidence(ctx context.Context, runID string) ([]holdpoint.Event, error) {
	path := "/v1/evidence"
	if runID != "" {
		path = at("/v1/runs/", runID, "/evidence")
	}
	a, err := call[struct{ Events []holdpoint.Event }](ctx, c, http.MethodGet, path, nil, nil)
	return a.Events, err
}

// ApprovalPage is one page of approvals.
type ApprovalPage struct {
	Approvals []Approval `json:"approvals"`
	Next      string     `json:"next_cursor,omitempty"`
}

// Approvals lists the approvals that the caller may see; state "" selects all.
func (c *Client) Approvals(ctx context.Context, state holdpoint.ApprovalState, cursor string, limit int) (ApprovalPage, error) {
	return call[ApprovalPage](ctx, c, http.MethodGet, "/v1/approvals", given("state", string(state), "cursor", cursor, "limit", count(limit)), nil)
}

// Card is everything that an approver must see.
type Card struct {
	Sentence  string                `json:"sentence"`
	Approval  Approval              `json:"approval"`
	Run       Run                   `json:"run"`
	Effects   []Effect              `json:"effects"`
	FirstTime map[string]bool       `json:"first_time"`
	Draft     DraftView             `json:"draft"`
	Faults    []string              `json:"faults"`
	Asked     []holdpoint.Challenge `json:"asked"`
	Eligible  []string              `json:"eligible"`
	Earlier   []holdpoint.Run       `json:"earlier"`
	Given     int                   `json:"quorum_given"`
	Missing   int                   `json:"quorum_missing"`
	ActAs     string                `json:"act_as"`
	MayDecide bool                  `json:"may_decide"`
	WhyNot    string                `json:"why_not,omitempty"`
	Standing  *Decision             `json:"standing,omitempty"`
}

// Approval gives one approval.
func (c *Client) Approval(ctx context.Context, id string) (Card, error) {
	return call[Card](ctx, c, http.MethodGet, at("/v1/approvals/", id), nil, nil)
}

// DecisionRequest is what the token's person answers. Digest states what that person saw.
type DecisionRequest struct {
	Decision holdpoint.Decision `json:"decision"`
	Digest   string             `json:"digest"`
	Reason   string             `json:"reason,omitempty"`
}

// Decided is what stands after a decision.
type Decided struct {
	Approval Approval                 `json:"approval"`
	Run      holdpoint.Run            `json:"run"`
	Decision holdpoint.DecisionRecord `json:"decision"`
	Effects  []holdpoint.Effect       `json:"effects,omitempty"`
	Repeated bool                     `json:"repeated,omitempty"` // the same answer stood already
}

// Decide records a decision.
func (c *Client) Decide(ctx context.Context, approvalID string, r DecisionRequest) (Decided, error) {
	return call[Decided](ctx, c, http.MethodPost, at("/v1/approvals/", approvalID, "/decisions"), nil, r)
}

// Withdrawal is what stands after an approval was withdrawn.
type Withdrawal struct {
	Approval Approval           `json:"approval"`
	Run      holdpoint.Run      `json:"run"`
	Effects  []holdpoint.Effect `json:"effects"`
}

// Withdraw takes a question back, or what it released and has not begun.
func (c *Client) Withdraw(ctx context.Context, approvalID, reason string) (Withdrawal, error) {
	return call[Withdrawal](ctx, c, http.MethodPost, at("/v1/approvals/", approvalID, "/withdraw"), nil, because{reason})
}
