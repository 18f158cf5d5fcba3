// Package mirror is a provider that misbehaves on cue and counts what really arrived. The demo shows it, and the
// conformance suite of connectors runs against it.
//
// The provider listens on a real socket. It records each write that arrived, keeps the objects that it committed, can
// honour idempotency keys, answers look-ups with a visibility lag, and breaks the connection in the ways that real
// providers, gateways and networks do.
package mirror

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// The names by which the provider reads a write.
const (
	KeyHeader      = "Idempotency-Key"
	ReferenceField = "external_ref" // top-level member of the JSON body
	LookupPath     = "/objects"     // GET LookupPath?ref=… gives {"results":[{"id":…}]}
)

// maxWrite bounds the body of one write, in bytes.
const maxWrite = 16 << 20

// Write is one write that arrived completely, in order of arrival.
type Write struct {
	Method    string
	Path      string
	Key       string // the value of KeyHeader
	Reference string // the value of ReferenceField
	Header    http.Header
	Body      []byte
	At        time.Time
	ID        string // the object that it created, or that its key stands for; "" if none
	Committed bool   // it created the object
	Replayed  bool   // its key had created the object before
}

// Object is what the provider holds after a committed write.
type Object struct {
	ID        string
	Reference string
	Key       string
	At        time.Time
}

type keyState struct {
	id   string
	body [sha256.Size]byte
	done bool
}

// Provider is a server on one address. It is safe for concurrent use.
type Provider struct {
	server   *http.Server
	listener net.Listener
	url      string
	stop     chan struct{}
	ended    chan struct{}
	closing  sync.Once
	closeErr error

	mu      sync.Mutex
	queues  map[string][]Behaviour
	always  map[string]Behaviour
	dedupe  bool
	lag     time.Duration
	writes  []Write
	objects []Object
	keys    map[string]*keyState
	lookups int
	nextID  int
}

// Start listens on addr, for example "127.0.0.1:0". The provider commits every write and ignores keys until told
// otherwise.
func Start(addr string) (*Provider, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		listener: l,
		url:      "http://" + l.Addr().String(),
		stop:     make(chan struct{}),
		ended:    make(chan struct{}),
		queues:   map[string][]Behaviour{},
		always:   map[string]Behaviour{},
		keys:     map[string]*keyState{},
	}
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(p.ended)
		_ = p.server.Serve(l) // always ends with ErrServerClosed, by Close
	}()
	return p, nil
}

// Close breaks all connections and stops the provider. Waiting behaviours end at once.
func (p *Provider) Close() error {
	p.closing.Do(func() {
		close(p.stop)
		p.closeErr = p.server.Close()
		<-p.ended
	})
	return p.closeErr
}

// URL is the base address, without a slash at the end.
func (p *Provider) URL() string { return p.url }

// Queue makes the next writes to path behave as given, one behaviour for each write in order of arrival.
func (p *Provider) Queue(path string, behaviours ...Behaviour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queues[path] = append(p.queues[path], behaviours...)
}

// Always makes every write to path behave as b while nothing is queued for it.
func (p *Provider) Always(path string, b Behaviour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.always[path] = b
}

// HonourKeys makes the provider treat a second write with the same key as the first one: the same id again, 409 while
// the first is being handled, 400 with idempotency_error if the body differs.
func (p *Provider) HonourKeys(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dedupe = on
}

// VisibilityLag hides an object from look-ups until lag has passed since its commit.
func (p *Provider) VisibilityLag(lag time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lag = lag
}

// Writes gives a copy of the writes that arrived completely.
func (p *Provider) Writes() []Write {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Write(nil), p.writes...)
}

// Count gives the number of arrived writes that match.
func (p *Provider) Count(match func(Write) bool) int {
	n := 0
	for _, w := range p.Writes() {
		if match(w) {
			n++
		}
	}
	return n
}

// CountPath gives the number of writes that arrived at path.
func (p *Provider) CountPath(path string) int {
	return p.Count(func(w Write) bool { return w.Path == path })
}

// CountKey gives the number of writes that arrived with key.
func (p *Provider) CountKey(key string) int {
	return p.Count(func(w Write) bool { return w.Key == key })
}

// CountReference gives the number of writes that arrived with reference.
func (p *Provider) CountReference(reference string) int {
	return p.Count(func(w Write) bool { return w.Reference == reference })
}

// Objects gives the committed objects that carry reference, visible or not; all of them if reference is "".
func (p *Provider) Objects(reference string) []Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Object
	for _, o := range p.objects {
		if reference == "" || o.Reference == reference {
			out = append(out, o)
		}
	}
	return out
}

// Lookups gives the number of look-ups that arrived.
func (p *Provider) Lookups() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lookups
}

func (p *Provider) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		p.lookup(w, r)
		return
	}
	b := p.next(r.URL.Path)
	if b.Cut == CutBeforeRead {
		cut(w, b.Cut, "")
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxWrite))
	if err != nil {
		return // the client went away; the write did not arrive
	}
	in := Write{Method: r.Method, Path: r.URL.Path, Key: r.Header.Get(KeyHeader), Header: r.Header.Clone(), Body: body, At: time.Now()}
	in.Reference = reference(body)
	id, state, early := p.arrive(in, b)
	if early != nil {
		respond(w, *early, id)
		return
	}
	if b.Wait > 0 {
		select {
		case <-time.After(b.Wait):
		case <-p.stop:
			b.Cut = CutSilently
		}
	}
	p.finish(state) // before the answer, so that whoever has seen it can repeat the key
	if b.Cut != CutNever {
		cut(w, b.Cut, b.text(id))
		return
	}
	respond(w, b, id)
}

func (p *Provider) next(path string) Behaviour {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.queues[path]; len(q) > 0 {
		p.queues[path] = q[1:]
		return q[0]
	}
	if b, ok := p.always[path]; ok {
		return b
	}
	return OK("")
}

// arrive records a write and commits it. A behaviour in early is the answer that a known key gives at once.
func (p *Provider) arrive(in Write, b Behaviour) (id string, state *keyState, early *Behaviour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := sha256.Sum256(in.Body)
	if p.dedupe && in.Key != "" {
		if known := p.keys[in.Key]; known != nil {
			answer := OK("")
			switch {
			case known.body != sum:
				answer = Status(http.StatusBadRequest, `{"error":{"type":"idempotency_error"}}`, nil)
			case !known.done:
				answer = Status(http.StatusConflict, `{"error":{"code":"idempotency_key_in_use"}}`, nil)
			default:
				in.ID, in.Replayed = known.id, true
			}
			p.writes = append(p.writes, in)
			return in.ID, nil, &answer
		}
	}
	if b.Commit {
		if in.ID = b.ID; in.ID == "" {
			p.nextID++
			in.ID = "obj-" + strconv.Itoa(p.nextID)
		}
		in.Committed = true
		p.objects = append(p.objects, Object{ID: in.ID, Reference: in.Reference, Key: in.Key, At: in.At})
		if p.dedupe && in.Key != "" {
			state = &keyState{id: in.ID, body: sum}
			p.keys[in.Key] = state
		}
	}
	p.writes = append(p.writes, in)
	return in.ID, state, nil
}

func (p *Provider) finish(s *keyState) {
	if s == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.done = true
}

func (p *Provider) lookup(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != LookupPath {
		http.NotFound(w, r)
		return
	}
	type result struct {
		ID        string `json:"id"`
		Reference string `json:"reference"`
	}
	out := struct {
		Results []result `json:"results"`
	}{Results: []result{}}
	ref, now := r.URL.Query().Get("ref"), time.Now()
	p.mu.Lock()
	p.lookups++
	for _, o := range p.objects {
		if o.Reference == ref && now.Sub(o.At) >= p.lag {
			out.Results = append(out.Results, result{o.ID, o.Reference})
		}
	}
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

func reference(body []byte) string {
	var doc map[string]any
	if json.Unmarshal(body, &doc) != nil {
		return ""
	}
	s, _ := doc[ReferenceField].(string)
	return s
}

func respond(w http.ResponseWriter, b Behaviour, id string) {
	w.Header().Set("Content-Type", "application/json")
	for k, v := range b.Header {
		w.Header().Set(k, v)
	}
	w.WriteHeader(b.Status)
	_, _ = io.WriteString(w, b.text(id)) // the client may be gone; that is its own finding
}

// cut takes the connection from the server and ends it.
func cut(w http.ResponseWriter, how Cut, text string) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(errors.Join(errors.New("connectortest: HTTP/1.1 connections only"), err))
	}
	if how == CutTruncated || how == CutResetBody {
		half := text[:len(text)/2]
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), half)
	}
	if t, ok := c.(*net.TCPConn); ok && (how == CutReset || how == CutResetBody) {
		_ = t.SetLinger(0) // closing sends RST
	}
	_ = c.Close()
}
