package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/holdpoint/holdpoint"
)

// Invariant is one line of the report: held is false as soon as one observation contradicts it.
type Invariant struct {
	ID     string `json:"id"`
	Held   bool   `json:"held"`
	Detail string `json:"detail"`
}

// Report is what an automatic demo found.
type Report struct {
	Invariants []Invariant                   `json:"invariants"`
	Deliveries int                           `json:"deliveries"`
	Runs       int                           `json:"runs"`
	Sends      int                           `json:"sends"`
	States     map[holdpoint.RunState]int    `json:"run_states"`
	Effects    map[holdpoint.EffectState]int `json:"effect_states"`
	Seconds    float64                       `json:"seconds"`
}

func newReport() *Report {
	r := &Report{States: map[holdpoint.RunState]int{}, Effects: map[holdpoint.EffectState]int{}}
	for n := 1; n <= 12; n++ {
		r.Invariants = append(r.Invariants, Invariant{ID: fmt.Sprintf("I%d", n)})
	}
	return r
}

// check adds one observation about an invariant.
func (r *Report) check(id string, held bool, format string, args ...any) {
	for i := range r.Invariants {
		v := &r.Invariants[i]
		if v.ID != id {
			continue
		}
		text := fmt.Sprintf(format, args...)
		if !held {
			text = "BROKEN: " + text
		}
		if v.Detail == "" {
			v.Held, v.Detail = held, text
		} else {
			v.Held, v.Detail = v.Held && held, v.Detail+"; "+text
		}
	}
}

// AllHeld reports whether every invariant was observed and none was contradicted.
func (r Report) AllHeld() bool {
	for _, v := range r.Invariants {
		if !v.Held {
			return false
		}
	}
	return len(r.Invariants) > 0
}

// Print writes the table for people.
func (r Report) Print(w io.Writer) {
	fmt.Fprintf(w, "\n%d deliveries, %d runs, %d requests at the provider, %.1f s\n\n", r.Deliveries, r.Runs, r.Sends, r.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range r.Invariants {
		mark := "held"
		if !v.Held {
			mark = "BROKEN"
		}
		for i, line := range strings.Split(v.Detail, "; ") {
			if i == 0 {
				fmt.Fprintf(t, "%s\t%s\t%s\n", v.ID, mark, line)
			} else {
				fmt.Fprintf(t, "\t\t%s\n", line)
			}
		}
	}
	_ = t.Flush()
}

// audit reads everything back: each request at the provider has its attempt, each run its evidence without gaps, and the
// log no content.
func (s *stage) audit(ctx context.Context, r *Report) error {
	var page struct {
		Runs []holdpoint.Run `json:"runs"`
	}
	if err := s.otto.expect(ctx, 200, "GET", "/v1/runs?limit=500", nil, &page); err != nil {
		return err
	}
	r.Deliveries, r.Runs, r.Sends = s.deliveries, len(page.Runs), len(s.provider.Writes())
	attempts := map[string]int{} // by reference
	begun, gaps, moved, finals := 0, 0, 0, 0
	for _, run := range page.Runs {
		r.States[run.State]++
		v, err := s.run(ctx, run.ID)
		if err != nil {
			return err
		}
		for _, x := range v.Effects {
			if !x.Planned {
				r.Effects[x.State]++
				attempts[x.Reference] += len(x.Attempts)
			}
		}
		var events []holdpoint.Event
		if err := s.otto.expect(ctx, 200, "GET", "/v1/runs/"+run.ID+"/evidence", nil, &struct {
			Events *[]holdpoint.Event `json:"events"`
		}{&events}); err != nil {
			return err
		}
		for i, ev := range events {
			if ev.Seq != int64(i+1) {
				gaps++
			}
			switch ev.Type {
			case "attempt.begun":
				begun++
			case "run.completed", "run.failed":
				finals++
			}
		}
		if run.State.Terminal() {
			moved++
		}
	}
	unknown := 0
	for _, w := range s.provider.Writes() {
		if attempts[w.Reference] == 0 {
			unknown++
		}
	}
	r.check("I1", unknown == 0, "every one of %d requests belongs to a released effect", r.Sends)
	r.check("I2", begun == r.Sends, "%d attempts were committed for %d requests", begun, r.Sends)
	r.check("I6", gaps == 0 && finals == moved, "evidence has no gaps, and an event for each of %d ended runs", moved)
	r.check("I12", len(s.keys) == len(page.Runs), "%d runs were acknowledged, %d stand", len(s.keys), len(page.Runs))
	leaks, lines, err := s.leaks()
	if err != nil {
		return err
	}
	r.check("I10", len(leaks) == 0 && lines > 0, "%d log lines carry no content, token or password%s", lines, strings.Join(leaks, ", "))
	return nil
}

// leaks looks for content and secrets in the server's log.
func (s *stage) leaks() (found []string, lines int, err error) {
	text, err := os.ReadFile(filepath.Join(s.dir, "server.log"))
	if err != nil {
		return nil, 0, err
	}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		lines++
	}
	for name, secret := range map[string]string{"a recipient": "jane@acme.example", "a draft": "refund is on its way", "a payload": "Where is my money",
		"a password": s.password, "a machine key": s.machine.token, "a token": s.ana.token, "another token": s.otto.token, "a reason": "wrong customer"} {
		if containsText(text, secret) {
			found = append(found, " but for "+name)
		}
	}
	return found, lines, scanner.Err()
}

func containsText(b []byte, text string) bool { return bytes.Contains(b, []byte(text)) }
