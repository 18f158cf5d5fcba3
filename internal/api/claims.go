package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// The bounds of a batch.
const (
	maxBatchClaims = 500
	batchFactor    = 16 // times the size of one body
)

// claimAnswers are the four outcomes by status; their body is the same.
var claimAnswers = map[int]any{
	http.StatusCreated:             engine.ClaimAnswer{},
	http.StatusOK:                  engine.ClaimAnswer{},
	http.StatusConflict:            engine.ClaimAnswer{},
	http.StatusUnprocessableEntity: engine.ClaimAnswer{},
}

var claimCodes = append([]holdpoint.Code{holdpoint.CodeInvalidKey, holdpoint.CodeInitiatorMissing, holdpoint.CodeUnknownWorkflow}, activeCodes...)

func claimRoutes() []route {
	return []route{
		with(route{pattern: "POST /v1/claims", id: "claim", answers: claimAnswers, codes: claimCodes,
			headers: []param{{name: "Idempotency-Key", about: "may stand for key; if both are given they must be equal"}},
			summary: "Claim a business event: 201 claimed, 200 duplicate, 409 busy, 422 mismatch."}, claim),
		{pattern: "POST /v1/claims/batch", id: "claimBatch", anyone: true, request: reflect.TypeFor[batchRequest](), serve: claimBatch, answers: map[int]any{http.StatusOK: batchAnswer{}},
			codes: []holdpoint.Code{holdpoint.CodeInvalidKey}, summary: "Claim up to 500 business events, each as if it were sent alone."},
		with(route{pattern: "POST /v1/runs/{id}/claim", id: "claimRun", answers: claimAnswers, codes: []holdpoint.Code{holdpoint.CodeNotFound, holdpoint.CodeUnknownWorkflow, holdpoint.CodeInvalidPolicy},
			summary: "Claim a run by its id, for an execution that holds the id but not the lease."}, claimRun),
	}
}

func claim(c *call, r engine.ClaimRequest) (answer, error) {
	keys := c.r.Header.Values("Idempotency-Key")
	switch {
	case len(keys) > 1 || len(keys) == 1 && r.Key != "" && keys[0] != r.Key:
		return answer{}, holdpoint.Errorf(holdpoint.CodeInvalidKey, "The header Idempotency-Key and the field key differ; send one of them.")
	case len(keys) == 1 && keys[0] == "":
		return answer{}, holdpoint.Errorf(holdpoint.CodeInvalidKey, "The header Idempotency-Key is empty; send the upstream system's own id, or leave it out and send key.")
	case len(keys) == 1:
		r.Key = keys[0]
	}
	a, err := c.engine().Claim(c.ctx, c.actor, r)
	return claimed(a), err
}

func claimRun(c *call, r engine.ClaimRunRequest) (answer, error) {
	a, err := c.engine().ClaimRun(c.ctx, c.actor, c.path("id"), r)
	return claimed(a), err
}

// claimed gives an outcome its status.
func claimed(a engine.ClaimAnswer) answer {
	out := answer{status: outcomeStatus(a.Outcome), body: a}
	if a.Outcome == holdpoint.Busy {
		out.retryAfter = max(1, a.RetryAfter)
	}
	return out
}

func outcomeStatus(o holdpoint.ClaimOutcome) int {
	switch o {
	case holdpoint.Claimed:
		return http.StatusCreated
	case holdpoint.Duplicate:
		return http.StatusOK
	case holdpoint.Busy:
		return http.StatusConflict
	}
	return http.StatusUnprocessableEntity
}

// batchRequest describes the body of a batch; it is read by splitBatch, so that one broken claim spoils no other.
type batchRequest struct {
	Claims []engine.ClaimRequest `json:"claims"`
}

// batchAnswer has one result for each claim, in order.
type batchAnswer struct {
	Results []batchResult `json:"results"`
}

// batchResult is what the claim would have been answered if it had been sent alone: outcome and run, or problem.
// RetryAfter is in seconds and goes with busy.
type batchResult struct {
	Status        int                    `json:"status"`
	Outcome       holdpoint.ClaimOutcome `json:"outcome,omitempty"`
	Run           *engine.ClaimedRun     `json:"run,omitempty"`
	Lease         *holdpoint.Lease       `json:"lease,omitempty"`
	RecoveredFrom string                 `json:"recovered_from,omitempty"`
	RetryAfter    int                    `json:"retry_after,omitempty"`
	Problem       *httpserver.Problem    `json:"problem,omitempty"`
}

func claimBatch(c *call) (answer, error) {
	if len(c.r.Header.Values("Idempotency-Key")) > 0 {
		return answer{}, holdpoint.Errorf(holdpoint.CodeInvalidKey, "A batch takes its keys from its claims; leave out the header Idempotency-Key.")
	}
	body, err := httpserver.Body(c.w, c.r, int64(c.server.limits.MaxBytes)*batchFactor)
	if err != nil {
		return answer{}, err
	}
	claims, err := splitBatch(body)
	if err != nil {
		return answer{}, err
	}
	results := make([]batchResult, len(claims))
	var requests []engine.ClaimRequest
	var at []int
	for i, doc := range claims {
		r, err := c.readClaim(doc)
		if err != nil {
			results[i] = c.failed(err)
			continue
		}
		requests, at = append(requests, r), append(at, i)
	}
	if len(requests) > 0 {
		answers, errs := c.engine().ClaimBatch(c.ctx, c.actor, requests)
		for i, n := range at {
			if errs[i] != nil {
				results[n] = c.failed(errs[i])
				continue
			}
			results[n] = resultOf(answers[i])
		}
	}
	return ok(batchAnswer{results}), nil
}

func (c *call) readClaim(doc []byte) (engine.ClaimRequest, error) {
	var r engine.ClaimRequest
	if err := payload.Check(doc, c.server.limits); err != nil {
		return r, err
	}
	return r, httpserver.Unmarshal(doc, &r)
}

func (c *call) failed(err error) batchResult {
	p := httpserver.NewProblem(err, httpserver.RequestID(c.ctx))
	if p.Status >= http.StatusInternalServerError {
		c.server.log.ErrorContext(c.ctx, "claim of a batch failed", "request_id", p.RequestID, "code", p.Code, "error", err.Error())
	}
	return batchResult{Status: p.Status, Problem: &p}
}

func resultOf(a engine.ClaimAnswer) batchResult {
	r := batchResult{Status: outcomeStatus(a.Outcome), Outcome: a.Outcome, Run: &a.Run, Lease: a.Lease, RecoveredFrom: a.RecoveredFrom}
	if a.Outcome == holdpoint.Busy {
		r.RetryAfter = httpserver.RetrySeconds(a.RetryAfter)
	}
	return r
}

// splitBatch takes the claims out of a batch without looking into them.
func splitBatch(body []byte) ([]json.RawMessage, error) {
	broken := holdpoint.Errorf(holdpoint.CodeInvalidJSON, "The batch is not well-formed JSON; produce it with a JSON library.")
	misfit := holdpoint.Errorf(holdpoint.CodeInvalidRequest, `Send one JSON object {"claims": [...]} with 1 to %d claims and nothing else.`, maxBatchClaims)
	if !json.Valid(body) {
		return nil, broken
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	for _, want := range []json.Token{json.Delim('{'), "claims", json.Delim('[')} {
		if t, err := dec.Token(); err != nil || t != want {
			return nil, misfit
		}
	}
	var claims []json.RawMessage
	for dec.More() {
		var doc json.RawMessage
		if err := dec.Decode(&doc); err != nil {
			return nil, broken
		}
		if claims = append(claims, doc); len(claims) > maxBatchClaims {
			return nil, misfit
		}
	}
	for _, want := range []json.Token{json.Delim(']'), json.Delim('}')} {
		if t, err := dec.Token(); err != nil || t != want {
			return nil, misfit
		}
	}
	if len(claims) == 0 {
		return nil, misfit
	}
	return claims, nil
}
