package killpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/killpoint"
)

// source is the program's own code: every file of it that is not a test.
type source struct {
	files  map[string][]*ast.File // by directory
	consts map[string]string      // string constants by name
}

func read(t *testing.T) source {
	t.Helper()
	s := source{files: map[string][]*ast.File{}, consts: map[string]string{}}
	root := filepath.Join("..", "..")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."), d.IsDir() && (d.Name() == "bench" || d.Name() == "killpoint"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s.files[filepath.ToSlash(filepath.Dir(path))] = append(s.files[filepath.ToSlash(filepath.Dir(path))], f)
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
				for i, value := range v.Values {
					if text, ok := literal(value); ok {
						s.consts[v.Names[i].Name] = text
					}
				}
			}
			return true
		})
		return nil
	}))
	return s
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// called is the name of a called function or method.
func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

// onStore reports whether a method is called on the store, which this package's functions name s, or a function with it.
func onStore(c *ast.CallExpr) bool {
	f, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		if len(c.Args) == 0 {
			return false
		}
		first, ok := c.Args[0].(*ast.Ident)
		return ok && first.Name == "s"
	}
	switch x := f.X.(type) {
	case *ast.Ident:
		return x.Name == "s"
	case *ast.SelectorExpr:
		return x.Sel.Name == "s"
	}
	return false
}

func calls(n ast.Node, fn func(*ast.CallExpr)) {
	ast.Inspect(n, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			fn(c)
		}
		return true
	})
}

// TestLinesAreThoseOfTheCode holds Lines to the calls of Reach.
func TestLinesAreThoseOfTheCode(t *testing.T) {
	s := read(t)
	var found []string
	for dir, files := range s.files {
		for _, f := range files {
			calls(f, func(c *ast.CallExpr) {
				if called(c) != "Reach" {
					return
				}
				require.Len(t, c.Args, 1)
				name, ok := literal(c.Args[0])
				if id, named := c.Args[0].(*ast.Ident); named {
					name, ok = s.consts[id.Name], s.consts[id.Name] != ""
				}
				require.True(t, ok, "%s: name the point by a literal or a constant", dir)
				found = append(found, name)
			})
		}
	}
	slices.Sort(found)
	require.Equal(t, slices.Compact(slices.Clone(found)), found, "a point is one line")
	require.ElementsMatch(t, killpoint.Lines, found)
}

// TestVerbsAreThoseOfTheStore holds Verbs to the transactions of the store, and holds that whatever commits passes a point
// before and one after.
func TestVerbsAreThoseOfTheStore(t *testing.T) {
	var functions []*ast.FuncDecl
	for _, f := range read(t).files["../../internal/store/sqlstore"] {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				functions = append(functions, fn)
			}
		}
	}
	require.NotEmpty(t, functions)

	carriers := map[string]int{} // functions that make a transaction of a verb, with the place of the verb in their arguments
	for _, fn := range functions {
		var order []string
		calls(fn.Body, func(c *ast.CallExpr) {
			switch name := called(c); {
			case name == "At":
				point, _ := literal(c.Args[1])
				order = append(order, point)
				if at := parameter(fn, c.Args[0]); at >= 0 {
					carriers[fn.Name.Name] = at
				}
			case name == "Commit" && len(c.Args) == 0:
				order = append(order, "Commit")
			}
		})
		if len(order) > 0 {
			require.Equal(t, []string{"before_commit", "Commit", "committed"}, order, "%s commits between its two points", fn.Name.Name)
		}
	}
	require.NotEmpty(t, carriers)
	for grown := true; grown; { // whoever hands its own verb on makes a transaction of it too
		grown = false
		for _, fn := range functions {
			calls(fn.Body, func(c *ast.CallExpr) {
				place, carries := carriers[called(c)]
				if !carries || !onStore(c) {
					return
				}
				if at := parameter(fn, c.Args[place]); at >= 0 {
					if _, known := carriers[fn.Name.Name]; !known {
						carriers[fn.Name.Name], grown = at, true
					}
				}
			})
		}
	}
	found := map[string]bool{}
	for _, fn := range functions {
		calls(fn.Body, func(c *ast.CallExpr) {
			place, carries := carriers[called(c)]
			if !carries || !onStore(c) || parameter(fn, c.Args[place]) >= 0 {
				return
			}
			if verb, ok := literal(c.Args[place]); ok {
				found[killpoint.Name(verb)] = true
			} else {
				t.Errorf("%s: name the verb by a literal", fn.Name.Name)
			}
		})
	}
	var verbs []string
	for verb := range found {
		verbs = append(verbs, verb)
	}
	require.ElementsMatch(t, killpoint.Verbs, verbs)
}

// parameter is the place among a function's parameters of the string that an expression names, -1 if it names none.
func parameter(fn *ast.FuncDecl, e ast.Expr) int {
	id, ok := e.(*ast.Ident)
	if !ok {
		return -1
	}
	place := 0
	for _, field := range fn.Type.Params.List {
		typ, text := field.Type.(*ast.Ident)
		for _, name := range field.Names {
			if name.Name == id.Name && text && typ.Name == "string" {
				return place
			}
			place++
		}
	}
	return -1
}

func TestNamesHaveOneForm(t *testing.T) {
	require.Equal(t, "claim_runs", killpoint.Name("ClaimRuns"))
	require.Equal(t, "lease_look_ups", killpoint.Name("lease look-ups"))
	points := killpoint.Points()
	require.Len(t, points, 2*len(killpoint.Verbs)+len(killpoint.Lines))
	for _, p := range points {
		require.Regexp(t, `^[a-z]+(\.[a-z_]+)+$`, p)
	}
	slices.Sort(points)
	require.Equal(t, slices.Compact(slices.Clone(points)), points)
}
