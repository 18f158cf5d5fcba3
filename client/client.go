// Package client calls the HTTP API of Holdpoint: each operation of its OpenAPI document has one method here.
//
// # Errors
//
// An error is an *holdpoint.Error: errors.As finds it, its Code says what to do (docs/errors.md), errors.Is with
// &holdpoint.Error{Code: …} asks for one code, and RetryAfter says how long to wait. Outcomes of claims, steps and drafts are
// answers, not errors. A failure to reach Holdpoint is unavailable, whatever became of the call.
//
// # Repeating
//
// Every method makes exactly one request and repeats nothing: whether a call is repeated is the caller's decision. After
// unavailable or rate_limited, wait as long as RetryAfter says and repeat the identical call. That is safe for
//
//   - every method that only reads;
//   - Claim, ClaimBatch and ClaimRun with an Owner of the caller's own, which answer claimed again (without one they answer
//     busy until the lease ends);
//   - Renew, FinishStep, SubmitDraft, Fail, Complete, Decide, Withdraw, Replace, SetSwitch, PutPolicy and what enables,
//     disables, grants, releases or revokes: they answer what stands;
//   - BeginStep, ResolveStep, CancelRun, CancelEffect, Resolve, ActivatePolicy, AddUser and RevokeRole, which refuse the
//     repeat (in_progress, not_allowed_now, policy_moved, exists, not_found) and change nothing.
//
// CreateKey and CreateToken make another key each time.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
)

// Client calls one Holdpoint as the owner of one token. It is safe for concurrent use.
type Client struct {
	base  string
	token string
	http  *http.Client
}

const (
	callTimeout = 2 * time.Minute
	maxAnswer   = 64 << 20
)

// New makes a client. baseURL is where Holdpoint is reached, with its path if it has one; token is a machine key (hp_…) or
// a person's token (hpu_…). A bad address shows at the first call. Redirects are not followed, so that the token goes to
// baseURL only.
func New(baseURL, token string) *Client {
	return &Client{base: strings.TrimRight(baseURL, "/"), token: token, http: &http.Client{Timeout: callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// RetryAfter is how long an error asks to wait before the call is repeated, 0 if it does not ask.
func RetryAfter(err error) time.Duration {
	var e *holdpoint.Error
	if !errors.As(err, &e) {
		return 0
	}
	switch v := e.Detail["retry_after"].(type) {
	case float64:
		return time.Duration(v * float64(time.Second))
	case int:
		return time.Duration(v) * time.Second
	}
	return 0
}

// response is one answer.
type response struct {
	status     int
	json       bool // application/json, not a problem
	retryAfter time.Duration
	body       []byte
}

// send makes one request. A problem document becomes an *holdpoint.Error with its code, sentence and members; a failure to
// reach Holdpoint, and an answer that is not Holdpoint's, is unavailable: the call may have taken hold.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body any) (response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(body); err != nil {
			return response{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "The request cannot be written as JSON; correct its raw JSON fields.").Wrap(err)
		}
		content = &b
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil || r.URL.Host == "" {
		return response{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "The address of Holdpoint must be an absolute http or https URL; set HOLDPOINT_URL.")
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Accept", "application/json, application/problem+json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return response{}, unreachable(err)
	}
	defer resp.Body.Close()
	out := response{status: resp.StatusCode, retryAfter: seconds(resp.Header.Get("Retry-After"))}
	if out.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1)); err != nil {
		return response{}, unreachable(err)
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case len(out.body) > maxAnswer:
		return response{}, holdpoint.Errorf(holdpoint.CodeTooLarge, "The answer is larger than %d bytes; ask for smaller pages.", maxAnswer)
	case media == "application/problem+json":
		return response{}, problem(out)
	case media == "application/json", out.status == http.StatusNoContent:
		out.json = media == "application/json"
		return out, nil
	}
	return response{}, foreign(out.status)
}

// unreachable keeps the address, which may hold a search word, out of the sentence.
func unreachable(err error) error {
	var wire *url.Error
	if errors.As(err, &wire) {
		err = wire.Err
	}
	return holdpoint.Errorf(holdpoint.CodeUnavailable, "Holdpoint did not answer; the call may have taken hold. Check that the server runs, then repeat the identical call.").Wrap(err)
}

func foreign(status int) error {
	return holdpoint.Errorf(holdpoint.CodeUnavailable, "The answer (status %d) is not Holdpoint's; check HOLDPOINT_URL and what stands between.", status).With("status", status)
}

func seconds(header string) time.Duration {
	n, err := strconv.Atoi(header)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// problem rebuilds the error of a problem document.
func problem(r response) error {
	var members map[string]any
	if json.Unmarshal(r.body, &members) != nil {
		return foreign(r.status)
	}
	code, _ := members["code"].(string)
	if code == "" {
		return foreign(r.status)
	}
	sentence, _ := members["detail"].(string)
	for _, name := range []string{"type", "title", "code", "detail"} {
		delete(members, name)
	}
	if _, given := members["retry_after"]; !given && r.retryAfter > 0 {
		members["retry_after"] = r.retryAfter.Seconds()
	}
	return &holdpoint.Error{Code: holdpoint.Code(code), Message: sentence, Detail: members}
}

// call makes a request and reads its answer, which must have one of the wanted statuses.
func call[A any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (A, error) {
	a, _, err := exchange[A](ctx, c, method, path, query, body)
	return a, err
}

func exchange[A any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (A, response, error) {
	var a A
	r, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return a, r, err
	}
	if !r.json {
		return a, r, foreign(r.status)
	}
	if err := json.Unmarshal(r.body, &a); err != nil {
		return a, r, foreign(r.status)
	}
	return a, r, nil
}

// discard makes a request whose answer has no body.
func (c *Client) discard(ctx context.Context, method, path string) error {
	_, err := c.send(ctx, method, path, nil, nil)
	return err
}

// at makes a path from its parts; every second one is a value.
func at(parts ...string) string {
	for i := 1; i < len(parts); i += 2 {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "")
}

// given makes a query of name and value pairs, without the empty values.
func given(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
