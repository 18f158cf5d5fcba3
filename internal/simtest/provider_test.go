package simtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/connector/httpcall"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// mood is how a provider treats one request.
type mood string

// The moods. What a provider of a real network does, seen from here: accepted or not, told or not.
const (
	answers        mood = "accepts and answers"
	answersSlowly  mood = "accepts and answers slowly"
	acceptsStalls  mood = "accepts and stalls"
	acceptsLater   mood = "accepts later and stalls"
	acceptsResets  mood = "accepts and resets"
	acceptsCut     mood = "accepts and is cut off"
	acceptsError   mood = "accepts and answers 500"
	acceptsNoID    mood = "accepts and answers without a reference"
	onlyStalls     mood = "stalls"
	onlyResets     mood = "resets"
	onlyError      mood = "answers 500"
	overloaded     mood = "answers 503"
	throttles      mood = "answers 429"
	refuses        mood = "answers 422"
	declines       mood = "answers 402"
	lacksKey       mood = "answers 401"
	forbids        mood = "answers 403"
	spent          mood = "has no quota left"
	unreachable    mood = "cannot be reached"
	stillAtIt      mood = "is still at it"
	knowsOtherBody mood = "knows the key with another body"
)

var moods = []mood{answers, answersSlowly, acceptsStalls, acceptsLater, acceptsResets, acceptsCut, acceptsError, acceptsNoID, onlyStalls, onlyResets,
	onlyError, overloaded, throttles, refuses, declines, lacksKey, forbids, spent, unreachable, stillAtIt, knowsOtherBody}

// lag is how long the providers' look-ups may trail their writes: within what the policy declares.
const lag = 28 * time.Second

// provider is everything on the other side: one set of objects by our reference.
type provider struct {
	w        *world
	mood     mood // of the next request
	objects  map[string][]object
	requests map[string]int // by reference
}

// object is what an accepted request has made.
type object struct {
	id      string
	body    string
	visible time.Time // a look-up finds it from then on
}

// honours reports whether a provider makes one object of two requests with the same key.
func honours(connector string) bool { return keyLife[connector] > 0 }

// accept makes an object, unless the key is known.
func (v *provider) accept(c string, x connector.Vars, body string, after time.Duration) string {
	known := v.objects[x.Reference]
	if len(known) > 0 && honours(c) {
		if known[0].body != body {
			v.w.broken("I3: %s got the key of %s with another body", c, v.w.name(x.RunID))
		}
		return known[0].id
	}
	if len(known) > 0 {
		v.w.broken("I3: %s accepted %s of %s a second time", c, x.Slot, v.w.name(x.RunID))
	}
	o := object{id: fmt.Sprintf("%s-%d", c, len(v.objects)+1), body: body, visible: time.Now().Add(after)}
	v.objects[x.Reference] = append(known, o)
	return o.id
}

// link is the connector that the dispatcher of one process is given.
type link struct {
	p   *process
	cfg httpcall.Config
}

// Close implements dispatch.Link.
func (*link) Close() {}

// Prepare implements connector.Connector.
func (l *link) Prepare(v connector.Vars) (connector.Call, error) {
	// Several effects of one lease come here at once; the turnstile puts them in an order.
	if l.p.pass("prepare", v.Reference) == isDead {
		return nil, unanswered("prepare")
	}
	wire, err := l.cfg.Render(v)
	if err != nil {
		return nil, err
	}
	hash, err := l.cfg.WireHash(v)
	if err != nil {
		return nil, err
	}
	return &request{l, v, wire, hash}, nil
}

// request is one call on the wire.
type request struct {
	l    *link
	v    connector.Vars
	wire httpcall.Wire
	hash string
}

// WireHash implements connector.Call.
func (r *request) WireHash() string { return r.hash }

// Send implements connector.Call, as the connector over HTTP keeps it: nothing is written at or after sendBefore.
func (r *request) Send(_ context.Context, sendBefore time.Time) (o holdpoint.Outcome) {
	p, begun := r.l.p, time.Now()
	defer func() {
		if v := recover(); v != nil { // the driver comes to it
			if _, known := v.(violation); !known {
				panic(v)
			}
		}
	}()
	ended := func(o holdpoint.Outcome) holdpoint.Outcome {
		o.Took = time.Since(begun)
		return o
	}
	f := p.pass("send", r.v.Reference)
	switch {
	case f == diesBefore:
		p.dead.Store(true)
		fallthrough
	case f == isDead:
		return ended(rejected(holdpoint.PhaseLocal, holdpoint.ClassLocalDeadline, 0))
	case !time.Now().Before(sendBefore):
		p.w.reach("write deadline passed")
		return ended(rejected(holdpoint.PhaseLocal, holdpoint.ClassLocalDeadline, 0))
	}
	m := p.w.provider.mood
	switch f {
	case fails:
		m = unreachable
	case loses:
		m = acceptsResets
	}
	o, wait := p.w.provider.receive(r, m)
	if f == diesAfter {
		p.dead.Store(true)
		return ended(o)
	}
	if wait > 0 {
		time.Sleep(wait)
	}
	p.pass("answer", r.v.Reference) // a pause here makes the answer late; a death loses it
	return ended(o)
}

func rejected(phase holdpoint.Phase, class holdpoint.FailureClass, status int) holdpoint.Outcome {
	return holdpoint.Outcome{Result: holdpoint.Rejected, Phase: phase, Class: class, Status: status}
}

func unclear(phase holdpoint.Phase, class holdpoint.FailureClass, status int) holdpoint.Outcome {
	return holdpoint.Outcome{Result: holdpoint.Unclear, Phase: phase, Class: class, Status: status}
}

// receive takes one request, as the mood has it, and gives what the connector will know and when.
func (v *provider) receive(r *request, m mood) (holdpoint.Outcome, time.Duration) {
	c, x := r.l.cfg.Name, r.v
	if m == unreachable {
		v.w.reach("mood: " + string(m))
		return rejected(holdpoint.PhaseConnect, holdpoint.ClassConnect, 0), 0
	}
	if m == acceptsNoID && r.l.cfg.ProviderID == "" || m == stillAtIt && len(v.objects[x.Reference]) == 0 ||
		m == knowsOtherBody && len(v.objects[x.Reference]) == 0 {
		m = answers
	}
	v.w.reach("mood: " + string(m))
	v.requests[x.Reference]++
	v.w.arrived(r)
	if v.w.proc != r.l.p {
		v.w.broken("a process that is dead has sent a request")
	}
	complete, written := holdpoint.PhaseComplete, holdpoint.PhaseWritten
	body := string(r.wire.Body)
	accept := func(after time.Duration) string { return v.accept(c, x, body, after) }
	ok := holdpoint.Outcome{Result: holdpoint.Accepted, Phase: complete, Status: 201}
	switch m {
	case answersSlowly:
		ok.ProviderID = accept(lag)
		return ok, 15 * time.Second
	case acceptsStalls:
		accept(5 * time.Second)
		return unclear(written, holdpoint.ClassAmbiguous, 0), r.l.cfg.Timeout
	case acceptsLater:
		accept(lag)
		return unclear(written, holdpoint.ClassAmbiguous, 0), r.l.cfg.Timeout
	case acceptsResets:
		accept(lag)
		return unclear(written, holdpoint.ClassAmbiguous, 0), 0
	case acceptsCut:
		accept(0)
		return holdpoint.Outcome{Result: holdpoint.Accepted, Phase: holdpoint.PhaseStatus, Class: holdpoint.ClassUnreferenced, Status: 201}, time.Second
	case acceptsNoID:
		accept(0)
		return holdpoint.Outcome{Result: holdpoint.Accepted, Phase: complete, Class: holdpoint.ClassUnreferenced, Status: 201}, 0
	case acceptsError:
		accept(0)
		return unclear(complete, holdpoint.ClassProviderError, 500), 0
	case onlyStalls:
		return unclear(written, holdpoint.ClassAmbiguous, 0), r.l.cfg.Timeout
	case onlyResets:
		return unclear(holdpoint.PhasePartial, holdpoint.ClassAmbiguous, 0), 0
	case onlyError:
		return unclear(complete, holdpoint.ClassProviderError, 500), 0
	case overloaded:
		return unclear(complete, holdpoint.ClassOverloaded, 503), 0
	case throttles:
		o := rejected(complete, holdpoint.ClassThrottled, 429)
		o.RetryAfter = 40 * time.Second
		return o, 0
	case refuses:
		return rejected(complete, holdpoint.ClassInvalidData, 422), 0
	case declines:
		return rejected(complete, holdpoint.ClassDeclined, 402), 0
	case lacksKey:
		return rejected(complete, holdpoint.ClassCredentials, 401), 0
	case forbids:
		return rejected(complete, holdpoint.ClassPermission, 403), 0
	case spent:
		return rejected(complete, holdpoint.ClassQuota, 429), 0
	case stillAtIt:
		return unclear(complete, holdpoint.ClassInProgress, 409), 0
	case knowsOtherBody:
		return unclear(complete, holdpoint.ClassKeyConflict, 409), 0
	}
	ok.ProviderID = accept(0)
	return ok, 0
}

// Find implements connector.Connector. The answer is judged by the policy's own expressions.
func (l *link) Find(_ context.Context, v connector.Vars) connector.Finding {
	if l.cfg.RenderLookup == nil {
		return connector.Finding{State: connector.Unsupported}
	}
	switch l.p.pass("find", v.Reference) {
	case isDead:
		return connector.Finding{State: connector.Unclear}
	case diesBefore, diesAfter:
		l.p.dead.Store(true)
		return connector.Finding{State: connector.Unclear}
	case fails, loses:
		return connector.Finding{State: connector.Unclear, Detail: "no answer"}
	}
	if _, err := l.cfg.RenderLookup(v); err != nil {
		return connector.Finding{State: connector.Unclear, Detail: "the look-up could not be rendered"}
	}
	type result struct {
		ID string `json:"id"`
	}
	seen := struct {
		Results []result `json:"results"`
	}{Results: []result{}}
	for _, o := range l.p.w.provider.objects[v.Reference] {
		if !time.Now().Before(o.visible) {
			seen.Results = append(seen.Results, result{o.id})
		} else {
			l.p.w.reach("look-up lags")
		}
	}
	body, err := json.Marshal(seen)
	if err != nil {
		return connector.Finding{State: connector.Unclear}
	}
	found, absent, id, err := l.cfg.JudgeLookup(200, bytes.TrimSpace(body))
	switch {
	case err != nil || found == absent:
		return connector.Finding{State: connector.Unclear}
	case found:
		return connector.Finding{State: connector.Found, ProviderID: id, Matches: 1}
	}
	return connector.Finding{State: connector.Absent}
}

// hashOf is the hash by which an effect names its payload.
func hashOf(v connector.Vars) string { return payload.Hash(v.Payload) }
