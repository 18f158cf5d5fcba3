// Package api is the JSON surface: it decodes, calls a use case of package engine, and encodes. It decides nothing.
package api

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/killpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// Options are those of New. The zero value is usable.
type Options struct {
	Limits  payload.Limits      // of one body; a batch may be sixteen times as large
	Limiter *httpserver.Limiter // of all callers; nil: 5,000 calls a second for each live token, 500 for each address without one
	Log     *slog.Logger        // nil discards
}

// What a live token may call in a second, and at once: far more than a workflow needs, and a bound for one that has gone
// wild.
const (
	keyRate  = 5_000
	keyBurst = 10_000
)

// document is the OpenAPI description of this package's routes. It is generated from them; a test holds it to them.
//
//go:embed openapi.json
var document []byte

//go:generate go test -count=1 -run ^TestDocument$ . -update

// server serves the routes.
type server struct {
	engine    *engine.Engine
	limits    payload.Limits
	limiter   *httpserver.Limiter // of live tokens
	strangers *httpserver.Limiter // of addresses without one
	log       *slog.Logger
	mux       *http.ServeMux
}

// New gives the handler of the HTTP API: all of /v1, /openapi.json, /healthz and /readyz. Put httpserver.Wrap around it.
// Only a Bearer token authenticates a call; a cookie never does.
func New(e *engine.Engine, o Options) http.Handler {
	s := &server{engine: e, limits: o.Limits, limiter: o.Limiter, log: o.Log, mux: http.NewServeMux()}
	s.strangers = s.limiter
	if s.limiter == nil {
		s.limiter, s.strangers = httpserver.NewLimiter(keyRate, keyBurst), httpserver.NewLimiter(0, 0)
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.limits.MaxBytes <= 0 {
		s.limits.MaxBytes = 1 << 20
	}
	for _, rt := range routes() {
		s.mux.Handle(rt.pattern, s.handler(rt))
	}
	return s
}

// routes are all calls of this API. The document is generated from the same list.
func routes() []route {
	return slices.Concat(claimRoutes(), workRoutes(), runRoutes(), approvalRoutes(), effectRoutes(), switchRoutes(),
		policyRoutes(), peopleRoutes(), systemRoutes())
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := s.mux.Handler(r); pattern == "" {
		httpserver.Render(w, r, s.noRoute(w, r))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// noRoute says that there is no such call, and which methods the path takes if it takes any.
func (s *server) noRoute(w http.ResponseWriter, r *http.Request) error {
	var takes []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = m
		if _, pattern := s.mux.Handler(other); pattern != "" {
			takes = append(takes, m)
		}
	}
	if len(takes) > 0 {
		w.Header().Set("Allow", strings.Join(takes, ", "))
		return holdpoint.Errorf(holdpoint.CodeNotFound, "This path takes %s only; GET /openapi.json describes all calls.", strings.Join(takes, " and "))
	}
	return holdpoint.Errorf(holdpoint.CodeNotFound, "There is no such call; GET /openapi.json describes all of them.")
}

// handler makes the handler of one route: who asks, how often, with what parameters; then the use case.
func (s *server) handler(rt route) http.Handler {
	wildcards := rt.wildcards()
	return httpserver.Handler(func(w http.ResponseWriter, r *http.Request) error {
		c := &call{server: s, ctx: r.Context(), w: w, r: r}
		err := checkPath(r, wildcards)
		if err != nil {
			return err
		}
		if rt.open {
			err = s.strangers.Allow(httpserver.Address(r))
		} else {
			c.actor, err = s.authenticate(r)
		}
		if err != nil {
			return err
		}
		if c.query, err = readQuery(r, rt.query); err != nil {
			return err
		}
		a, err := rt.serve(c)
		if err != nil {
			return err
		}
		if r.Method != http.MethodGet {
			killpoint.Reach("api.before_answer")
		}
		if a.retryAfter > 0 {
			w.Header().Set("Retry-After", retryAfter(a.retryAfter))
		}
		if a.body == nil {
			w.WriteHeader(a.status)
			return nil
		}
		return httpserver.WriteJSON(w, a.status, a.body)
	})
}

// authenticate finds who asks. Callers with a live token have an allowance each; all other calls of one network address
// share one.
func (s *server) authenticate(r *http.Request) (holdpoint.Actor, error) {
	actor, err := s.bearer(r)
	caller, limiter := "actor "+actor.ID, s.limiter
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeUnauthenticated}) {
		caller, limiter = httpserver.Address(r), s.strangers
	} else if err != nil {
		return actor, err
	}
	if limited := limiter.Allow(caller); limited != nil {
		return actor, limited
	}
	if err == nil {
		httpserver.SetActor(r.Context(), actor.ID)
	}
	return actor, err
}

// maxToken bounds what is hashed and looked up; tokens of this version have 47 characters.
const maxToken = 256

func (s *server) bearer(r *http.Request) (holdpoint.Actor, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 1 {
		scheme, token, _ := strings.Cut(headers[0], " ")
		token = strings.TrimSpace(token)
		if strings.EqualFold(scheme, "Bearer") && token != "" && len(token) <= maxToken {
			return s.engine.Bearer(r.Context(), token)
		}
	}
	return holdpoint.Actor{}, holdpoint.Errorf(holdpoint.CodeUnauthenticated, "Send a machine key or a person's token as Authorization: Bearer.")
}

// call is one request on its way to a use case.
type call struct {
	server *server
	ctx    context.Context
	actor  holdpoint.Actor
	query  map[string]string
	w      http.ResponseWriter
	r      *http.Request
}

func (c *call) engine() *engine.Engine { return c.server.engine }

// path gives a parameter of the route's pattern.
func (c *call) path(name string) string { return c.r.PathValue(name) }
