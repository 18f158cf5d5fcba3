package simtest

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/store"
)

// world is one seed: a file, the life of the program over it, and everybody who has to do with it.
type world struct {
	*testing.T
	seed      uint64
	rng       *rand.Rand
	path      string
	base      *template
	log       *slog.Logger
	poll      time.Duration
	profile   profile
	skew      atomic.Int64 // how far the store's clock is ahead of the bubble's
	turnstile turnstile
	proc      *process
	provider  *provider
	evidence  *shadow
	read      *sql.DB
	calls     []*call // on their way
	jobs      []*job
	crashes   int
	cover     coverage
	said      []string // the last steps
	faulty    bool     // faults may happen
	dirty     bool     // something was written since the evidence was read
	names     map[string]string
	violation atomic.Pointer[violation]
	tenant    atomic.Pointer[store.Tenant]
	swept     time.Time // when runs were last swept
	compared  int64     // the version of the data that the rows were last held to
	sum       uint64
}

// profile is what a seed is about.
type profile struct {
	name                          string
	crash, fail, lose, hold, mood int // in a thousand
}

var profiles = []profile{
	{name: "calm"},
	{name: "crashing", crash: 25, mood: 400},
	{name: "flaky", fail: 30, lose: 30, crash: 4, mood: 500},
	{name: "slow", hold: 40, crash: 4, mood: 500},
	{name: "hostile provider", crash: 8, hold: 5, mood: 850},
	{name: "wild", crash: 12, fail: 15, lose: 15, hold: 20, mood: 500},
}

// now is the store's clock: the bubble's, some seconds ahead or behind.
func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.skew.Load())) }

// newWorld makes the world of a seed. It is called inside its bubble.
func newWorld(t *testing.T, seed uint64, dir string) *world {
	base, err := made()
	require.NoError(t, err)
	w := &world{T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0x5eed)), base: base, path: filepath.Join(dir, "hp.db"),
		cover: coverage{}, names: map[string]string{}, faulty: true}
	w.turnstile.arrived = make(chan struct{}, 1)
	w.log = newLog(w)
	require.NoError(t, os.WriteFile(w.path, base.file, 0o600))
	w.profile = profiles[w.rng.IntN(len(profiles))]
	w.poll = pick(w, []time.Duration{20 * time.Second, 2 * time.Minute, 10 * time.Minute})
	w.provider = &provider{w: w, mood: answers, objects: map[string][]object{}, requests: map[string]int{}}
	w.read, err = sql.Open("sqlite", "file:"+w.path+"?_pragma=query_only(1)&_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	w.read.SetMaxOpenConns(1)
	w.evidence = newShadow(w)
	w.start()
	w.pump(-1)
	w.evidence.follow()
	return w
}

func pick[A any](w *world, list []A) A { return list[w.rng.IntN(len(list))] }

// chance is true n times in a thousand.
func (w *world) chance(n int) bool { return n > 0 && w.rng.IntN(1000) < n }

// say notes a step for whoever must understand a failure, and for the comparison of two replays.
func (w *world) say(format string, args ...any) {
	line := fmt.Sprintf("%12s  ", time.Since(epoch)) + fmt.Sprintf(format, args...)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d%s", w.sum, line)
	w.sum = h.Sum64()
	if w.said = append(w.said, line); len(w.said) > 400 {
		w.said = w.said[200:]
	}
}

// name gives an id a name that is the same in a replay.
func (w *world) name(id string) string {
	if id == "" {
		return ""
	}
	n, ok := w.names[id]
	if !ok {
		n = fmt.Sprintf("#%d", len(w.names)+1)
		w.names[id] = n
	}
	return n
}

// broken ends the seed: an invariant does not hold. Only the first is told; the rest may follow from it.
func (w *world) broken(format string, args ...any) {
	v := violation(fmt.Sprintf(format, args...))
	w.note(v)
	panic(v)
}

// note keeps a violation until the driver comes to it.
func (w *world) note(v violation) {
	w.violation.CompareAndSwap(nil, &v)
}

// violation is a broken invariant on its way out.
type violation string

// reach counts something that a seed has come across.
func (w *world) reach(what string) { w.cover[what]++ }

// clean holds a text to I10.
func (w *world) clean(what string, text []byte) {
	if bytes.Contains(text, []byte(secret)) {
		w.note(violation(fmt.Sprintf("I10: %s holds content or a secret: %.300s", what, text)))
	}
	if bytes.Contains(text, []byte("hp_")) || bytes.Contains(text, []byte("hpu_")) || bytes.Contains(text, []byte("hps_")) {
		w.note(violation(fmt.Sprintf("I10: %s holds a token: %.300s", what, text)))
	}
}

// call is one call of somebody, from its start to its answer.
type call struct {
	who            string
	p              *process
	done           atomic.Bool
	acknowledged   bool // the caller has the answer
	lost           bool // the answer gets lost on its way
	status         int
	body           []byte
	then           func(c *call)
	method, target string
}

// into reads the answer.
func (c *call) into(v any) {
	if err := json.Unmarshal(c.body, v); err != nil {
		panic(violation(fmt.Sprintf("%s %s answered %d with what cannot be read: %v", c.method, c.target, c.status, err)))
	}
}

// ask makes a call; then is run by the driver when its answer has come.
func (w *world) ask(who, method, target string, body any, then func(c *call)) *call {
	c := &call{who: who, p: w.proc, then: then, method: method, target: target}
	var text []byte
	if body != nil {
		var err error
		text, err = json.Marshal(body)
		require.NoError(w, err)
	}
	r := httptest.NewRequest(method, target, bytes.NewReader(text))
	if strings.HasPrefix(target, "/v1/") {
		r.Header.Set("Authorization", "Bearer "+w.base.tokens[who])
		if body != nil {
			r.Header.Set("Content-Type", "application/json")
		}
	} else {
		w.asPerson(r, who)
	}
	w.dispatchCall(c, r)
	return c
}

// asPerson makes a request that of a browser in which somebody is signed in.
func (w *world) asPerson(r *http.Request, who string) {
	r.Host = "127.0.0.1:8470"
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.AddCookie(auth.SessionCookie(w.base.sessions[who], false, "/", time.Hour))
}

// post sends the form of a page.
func (w *world) post(who, target string, form url.Values, then func(c *call)) {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w.asPerson(r, who)
	w.dispatchCall(&call{who: who, p: w.proc, then: then, method: r.Method, target: target}, r)
}

func (w *world) dispatchCall(c *call, r *http.Request) {
	c.lost = w.faulty && w.chance(w.profile.lose)
	w.calls = append(w.calls, c)
	go func() {
		defer c.done.Store(true)
		rec := httptest.NewRecorder()
		c.p.handler.ServeHTTP(rec, r)
		c.status, c.body = rec.Code, rec.Body.Bytes()
		c.acknowledged = !c.p.dead.Load()
	}()
	synctest.Wait()
}

// reap gives finished calls to those who made them.
func (w *world) reap() {
	for i := 0; i < len(w.calls); i++ {
		c := w.calls[i]
		if !c.done.Load() {
			continue
		}
		w.calls = append(w.calls[:i:i], w.calls[i+1:]...)
		i--
		if c.status >= 400 && strings.HasPrefix(c.target, "/v1/") { // a page may say what went wrong above its content
			w.clean("an error", c.body)
		}
		if c.acknowledged && c.lost {
			w.reach("fault: answer lost")
			c.acknowledged = false
		}
		w.say("  %s %s %s: %d%s", c.who, c.method, w.plain(c.target), c.status, map[bool]string{true: "", false: ", unheard"}[c.acknowledged])
		if c.then != nil {
			c.then(c)
		}
	}
}

// plain puts names in the place of ids.
func (w *world) plain(target string) string {
	parts := strings.Split(target, "/")
	for i, p := range parts {
		if len(p) == 36 && strings.Count(p, "-") == 4 {
			parts[i] = w.name(p)
		}
	}
	return strings.Join(parts, "/")
}

// pump lets those at the turnstile go, one after the other and each to its next stop, until nobody waits there that may
// go, or limit have gone (negative: no limit).
func (w *world) pump(limit int) {
	for n := 0; ; {
		synctest.Wait()
		if v := w.violation.Load(); v != nil {
			panic(*v)
		}
		if w.proc.dead.Load() {
			w.crash()
			continue
		}
		w.reap()
		if n == limit {
			return
		}
		x := w.next()
		if x == nil {
			return
		}
		n++
		w.let(x)
	}
}

// next chooses who goes.
func (w *world) next() *waiter {
	var may []*waiter
	for _, x := range w.turnstile.list() {
		if !time.Now().Before(x.held) {
			may = append(may, x)
		}
	}
	if len(may) == 0 {
		return nil
	}
	if len(may) == 1 {
		return may[0]
	}
	return pick(w, may)
}

// let decides what becomes of one write or request, and lets it happen.
func (w *world) let(x *waiter) {
	f := passes
	if loops[x.verb] && w.idle(x.verb) {
		w.turnstile.let(x, sleeps)
		return
	}
	w.dirty = true
	if w.faulty && x.verb != "prepare" && x.held.IsZero() {
		switch p := w.profile; {
		case w.chance(p.crash):
			f = pick(w, []fate{diesBefore, diesAfter})
		case w.chance(p.fail):
			f = fails
		case w.chance(p.lose):
			f = loses
		case w.chance(p.hold):
			f = holds
		}
	}
	if f == holds {
		d := pick(w, []time.Duration{time.Second, 10 * time.Second, 40 * time.Second, 3 * time.Minute, 12 * time.Minute})
		x.held = time.Now().Add(d)
		w.reach("fault: " + x.verb + " " + string(f))
		w.say("    %s %s %s for %s", x.verb, w.name(x.id), f, d)
		return
	}
	if x.verb == "send" {
		w.provider.mood = answers
		if w.faulty && w.chance(w.profile.mood) {
			w.provider.mood = pick(w, moods)
			if len(w.provider.objects[x.id]) > 0 && w.chance(500) { // what only a repetition meets
				w.provider.mood = pick(w, []mood{stillAtIt, knowsOtherBody})
			}
		}
	}
	if f != passes {
		w.reach("fault: " + x.verb + " " + string(f))
		if f == loses && x.verb == "answer" {
			f = passes
		}
	}
	if f != passes || x.verb == "send" {
		w.say("    %s %s %s", x.verb, w.name(x.id), f)
	}
	w.turnstile.let(x, f)
}

// loops are the verbs of polls.
var loops = map[string]bool{"LeaseEffects": true, "LeaseLookups": true, "RecoverEffects": true, "SweepRuns": true, "CloseExpired": true}

// idle reports whether a loop can find nothing by this verb: no effect is in a state, and no run at a time, that it asks
// for. It spares a seed the statements of most polls; one in sixteen is made all the same, in case it does find something.
func (w *world) idle(verb string) bool {
	if w.dirty {
		w.evidence.follow()
		w.dirty = false
	}
	if w.rng.IntN(16) == 0 {
		return false
	}
	if verb == "SweepRuns" {
		if !w.evidence.sweepable(w.now(), time.Since(w.swept) > 10*time.Minute) {
			return true
		}
		w.swept = time.Now()
		return false
	}
	denied := w.rng.IntN(8) == 0 // an effect that the switch stops may be asked for, too
	for _, x := range w.evidence.effects {
		switch {
		case verb == "LeaseEffects" && x.state == holdpoint.EffectPending && x.hold == holdpoint.HoldNone && (denied || !w.now().Before(x.executeBy) || w.evidence.free(x)),
			verb == "LeaseLookups" && x.state == holdpoint.EffectUnknown,
			verb == "RecoverEffects" && x.state == holdpoint.EffectSending,
			verb == "CloseExpired" && x.state == holdpoint.EffectPending && x.hold == holdpoint.HoldExpired:
			return false
		}
	}
	return true
}

// crash buries the process and starts the next one over the same file.
func (w *world) crash() {
	w.say("the process dies")
	w.crashes++
	w.proc.bury()
	synctest.Wait()
	w.reap()
	w.evidence.afterCrash()
	w.start()
}

// advance lets time pass, with everything that happens meanwhile.
func (w *world) advance(d time.Duration) {
	for end := time.Now().Add(d); ; {
		w.pump(-1)
		now := time.Now()
		if !now.Before(end) {
			return
		}
		next := end
		for _, x := range w.turnstile.list() {
			if x.held.Before(next) {
				next = x.held
			}
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-w.turnstile.arrived:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// finish ends the bubble: the last process dies, and what has begun comes to its end.
func (w *world) finish() {
	w.proc.bury()
	synctest.Wait()
	_ = w.read.Close()
	time.Sleep(time.Hour) // whoever of the dead still sleeps wakes up, and ends
	synctest.Wait()
}
