// Package demo plays the main job on embedded SQLite: a server of its own in a process of its own, a mirror provider that
// counts what really arrived, real-shaped deliveries, and people who decide. What it reports is read back from the server
// and from the provider, never assumed.
package demo

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/app"
	"github.com/holdpoint/holdpoint/connector/mirror"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// Options say how to play.
type Options struct {
	Binary string    // the holdpoint binary that is started as server
	Auto   bool      // decide by itself, then stop
	Out    io.Writer // what people read
}

// The people of the demo.
const (
	approver = "ana@demo.example"
	operator = "otto@demo.example"
)

// stage is everything that a demo sets up.
type stage struct {
	o        Options
	dir      string
	key      []byte
	listen   string
	provider *mirror.Provider
	server   *server
	machine  *caller // the workflow
	ana      *caller // the approver
	otto     *caller // the operator
	password string
	policy   string // hash of the active policy

	deliveries int
	keys       map[string]string // what was acknowledged: key → run id
}

// Run plays the demo. In automatic mode the report says which invariants held; otherwise Run waits at the approval pages
// until ctx ends.
func Run(ctx context.Context, o Options) (r Report, err error) {
	s := &stage{o: o, keys: map[string]string{}}
	if s.dir, err = os.MkdirTemp("", "holdpoint-demo-"); err != nil {
		return r, err
	}
	defer func() {
		if s.server != nil {
			s.server.stop()
		}
		if s.provider != nil {
			err = errors.Join(err, s.provider.Close())
		}
		err = errors.Join(err, os.RemoveAll(s.dir))
	}()
	started := time.Now()
	if err := s.setUp(ctx); err != nil {
		return r, err
	}
	if !o.Auto {
		return r, s.show(ctx)
	}
	r, err = s.play(ctx)
	r.Seconds = time.Since(started).Seconds()
	return r, err
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.o.Out, format+"\n", args...) }

// setUp makes store, people, policy and keys, as init does, and starts provider and server.
func (s *stage) setUp(ctx context.Context) error {
	var err error
	if s.provider, err = mirror.Start("127.0.0.1:0"); err != nil {
		return err
	}
	if s.listen, err = freeAddress(); err != nil {
		return err
	}
	s.key = make([]byte, 32)
	_, _ = rand.Read(s.key)
	if err := os.WriteFile(filepath.Join(s.dir, "holdpoint.key"), []byte(base64.StdEncoding.EncodeToString(s.key)+"\n"), 0o600); err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	s.server = &server{binary: s.o.Binary, dir: s.dir, listen: s.listen}
	return s.server.start(ctx)
}

// fill opens the store before the server does, and puts in what the demo needs.
func (s *stage) fill(ctx context.Context) (err error) {
	a, err := app.New(ctx, app.Options{DB: "sqlite:" + filepath.Join(s.dir, "holdpoint.db"), PublicURL: "http://" + s.listen, MasterKey: s.key})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Stop(ctx)) }()
	e := a.Engine()
	by := engine.Local(engine.DefaultTenant, "demo")
	if err := e.CreateTenant(ctx, by, engine.DefaultTenant); err != nil {
		return err
	}
	s.password = strings.ToLower(rand.Text()[:16])
	tokens := map[string]string{}
	for _, email := range []string{approver, operator} {
		if _, err := e.AddPerson(ctx, by, email, s.password); err != nil {
			return err
		}
	}
	stored, err := e.PutPolicy(ctx, by, engine.PolicyProposal{Document: strings.ReplaceAll(policyDocument, "PROVIDER", s.provider.URL()), Files: map[string]string{"draft.json": contract}})
	if err != nil {
		return fmt.Errorf("the demo's policy: %w %v", err, stored.Findings)
	}
	s.policy = stored.Hash
	if err := e.ActivatePolicy(ctx, by, stored.Hash, ""); err != nil {
		return err
	}
	for email, scopes := range map[string][]holdpoint.Scope{
		approver: {holdpoint.ScopeRead, holdpoint.ScopeContent, holdpoint.ScopeDecide},
		operator: {holdpoint.ScopeRead, holdpoint.ScopeOperate, holdpoint.ScopeSwitch},
	} {
		k, err := e.CreateToken(ctx, by, email, "demo", scopes)
		if err != nil {
			return err
		}
		tokens[email] = k.Key
	}
	k, err := e.CreateKey(ctx, by, "demo workflow", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead})
	if err != nil {
		return err
	}
	base := "http://" + s.listen
	s.machine, s.ana, s.otto = &caller{base, k.Key}, &caller{base, tokens[approver]}, &caller{base, tokens[operator]}
	return nil
}

// freeAddress finds a loopback port that nobody uses.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// show plays the deliveries, prints where to decide and stays until ctx ends.
func (s *stage) show(ctx context.Context) error {
	if err := s.switches(ctx, true, "the demo begins"); err != nil {
		return err
	}
	s.say("A support ticket arrives, is delivered again, and ten times at once.")
	ticket := s.event("ticket-4711")
	won := 0
	var waiting []drafted
	for range 12 {
		c, err := s.claim(ctx, "ticket-reply", "ticket-4711", ticket)
		if err != nil {
			return err
		}
		if c.Outcome == "claimed" {
			won++
			d, err := s.draft(ctx, c, `{"reply":"Hello Jane, your refund is on its way.","label":"refund"}`)
			if err != nil {
				return err
			}
			waiting = append(waiting, d)
		}
	}
	s.say("12 deliveries, %d lease. The model has drafted; nothing has been sent.", won)
	_, d, err := s.work(ctx, "order", "order-100", `{"reply":"Order 100 is booked.","label":"order"}`)
	if err != nil {
		return err
	}
	waiting = append(waiting, d)
	s.provider.Queue("/orders", mirror.AcceptThenStall(4*time.Second))
	s.say("An order waits as well; its provider will accept it and then stall.\n")
	for _, d := range waiting {
		if d.Approval != nil {
			s.say("Decide  http://%s/console/approvals/%s", s.listen, d.Approval.ID)
		}
	}
	s.say("or see  http://%s/console", s.listen)
	s.say("as      %s", approver)
	s.say("with    %s", s.password)
	s.say("\n(%s, same password, is the operator: switches, uncertain effects.)", operator)
	s.say("Nothing leaves before you decide. Ctrl-C ends the demo.")
	seen := 0
	for {
		select {
		case <-ctx.Done():
			s.say("\nThe provider received %d writes.", len(s.provider.Writes()))
			return nil
		case <-time.After(200 * time.Millisecond):
			for writes := s.provider.Writes(); seen < len(writes); seen++ {
				s.say("The provider received: %s %s", writes[seen].Method, writes[seen].Path)
			}
		}
	}
}
