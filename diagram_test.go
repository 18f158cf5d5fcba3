package holdpoint_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdpoint/holdpoint"
)

//go:generate go test -count=1 -run ^TestStatesDocument$ . -update

var update = flag.Bool("update", false, "write the generated parts of the documentation")

// TestStatesDocument holds docs/states.md and the picture in README.md to the transition tables.
func TestStatesDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("# States\n\nGenerated from the transition tables of the root package (`go generate .`); what is not here cannot happen.\n")
	table(&b, "Run", holdpoint.RunTransitions)
	table(&b, "Step", holdpoint.StepTransitions)
	table(&b, "Approval", holdpoint.ApprovalTransitions)
	table(&b, "Effect", holdpoint.EffectTransitions)
	same(t, "docs/states.md", b.String())

	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- states: generated -->\n", "<!-- /states -->\n"
	before, rest, ok := strings.Cut(string(readme), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("README.md has lost the markers of its picture of the states")
	}
	same(t, "README.md", before+begin+picture(holdpoint.RunTransitions)+"\n"+picture(holdpoint.EffectTransitions)+end+after)
}

func same(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the transition tables say; run go generate .", path)
	}
}

func table[S ~string](b *strings.Builder, name string, rows []holdpoint.Transition[S]) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n| from | to | trigger | who | condition |\n| --- | --- | --- | --- | --- |\n", name, picture(rows))
	for _, r := range rows {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", orDash(string(r.From)), r.To, r.Trigger, r.Who, orDash(r.Guard))
	}
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// picture draws a table as a state diagram; several triggers of one arrow share its label.
func picture[S ~string](rows []holdpoint.Transition[S]) string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	type arrow struct{ from, to S }
	labels := map[arrow][]string{}
	var order []arrow
	exits := map[S]bool{}
	for _, r := range rows {
		a := arrow{r.From, r.To}
		if labels[a] == nil {
			order = append(order, a)
		}
		if !strings.Contains(" "+strings.Join(labels[a], " ")+" ", " "+r.Trigger+" ") {
			labels[a] = append(labels[a], r.Trigger)
		}
		exits[r.From] = true
	}
	for _, a := range order {
		from := string(a.from)
		if from == "" {
			from = "[*]"
		}
		fmt.Fprintf(&b, "  %s --> %s: %s\n", from, a.to, strings.Join(labels[a], ", "))
	}
	seen := map[S]bool{}
	for _, a := range order {
		if !exits[a.to] && !seen[a.to] {
			seen[a.to] = true
			fmt.Fprintf(&b, "  %s --> [*]\n", a.to)
		}
	}
	b.WriteString("```\n")
	return b.String()
}
