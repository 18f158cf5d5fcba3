package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// layout names the columns of a batch with their types: text, bigint or bytes.
type layout struct{ names, kinds []string }

// columns reads a layout from "name type, name type".
func columns(spec string) layout {
	var l layout
	for part := range strings.SplitSeq(spec, ",") {
		name, kind, _ := strings.Cut(strings.TrimSpace(part), " ")
		l.names, l.kinds = append(l.names, name), append(l.kinds, kind)
	}
	return l
}

// list names the columns in their order.
func (l layout) list() string { return strings.Join(l.names, ", ") }

// liteRows bounds the rows of one statement on SQLite, which searches its list of parameters for each of them, so that
// time grows with the square of their number. There the transaction is the only writer, and several statements in it
// are as good as one.
const liteRows = 50

// each hands rows to fn as the table v: the text of a WITH clause and its arguments, which begin with args. PostgreSQL
// takes one array for each column, so that a statement reads the same for any number of rows and is planned once;
// SQLite has no arrays and takes VALUES, some rows at a time. Values are string, int64, []byte or nil.
func (s *Store) each(l layout, rows [][]any, args []any, fn func(with string, args []any) error) error {
	if len(rows) == 0 {
		return nil
	}
	if s.postgres {
		with, args := l.arrays(rows, slices.Clip(args))
		return fn(with, args)
	}
	for part := range slices.Chunk(rows, liteRows) {
		with, args := l.tuples(part, slices.Clip(args))
		if err := fn(with, args); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) each(l layout, rows [][]any, args []any, fn func(with string, args []any) error) error {
	return t.s.each(l, rows, args, fn)
}

// insert writes rows into a table that has the columns of l.
func (t *tx) insert(ctx context.Context, table string, l layout, rows [][]any) error {
	return t.each(l, rows, nil, func(with string, args []any) error {
		_, err := t.ExecContext(ctx, with+" INSERT INTO "+table+" ("+l.list()+") SELECT "+l.list()+" FROM v", args...)
		return err
	})
}

func (l layout) arrays(rows [][]any, args []any) (string, []any) {
	var b strings.Builder
	b.WriteString("WITH v (" + l.list() + ") AS (SELECT * FROM unnest(")
	for i, kind := range l.kinds {
		if i > 0 {
			b.WriteString(", ")
		}
		args = append(args, column(kind, rows, i))
		b.WriteString("CAST($" + strconv.Itoa(len(args)) + " AS " + map[string]string{"text": "TEXT[]", "bigint": "BIGINT[]", "bytes": "BYTEA[]"}[kind] + ")")
	}
	b.WriteString("))")
	return b.String(), args
}

// column gives one column of rows as an array that may hold NULL.
func column(kind string, rows [][]any, i int) any {
	switch kind {
	case "text":
		return array[string](rows, i)
	case "bigint":
		return array[int64](rows, i)
	}
	all := make([][]byte, len(rows))
	for n, row := range rows {
		all[n], _ = row[i].([]byte)
	}
	return all
}

func array[T any](rows [][]any, i int) any {
	all, null := make([]T, len(rows)), false
	for n, row := range rows {
		if row[i] == nil {
			null = true
			continue
		}
		all[n] = row[i].(T)
	}
	if !null {
		return all
	}
	nullable := make([]*T, len(rows))
	for n := range all {
		if rows[n][i] != nil {
			nullable[n] = &all[n]
		}
	}
	return nullable
}

func (l layout) tuples(rows [][]any, args []any) (string, []any) {
	var b strings.Builder
	b.WriteString("WITH v (" + l.list() + ") AS (VALUES ")
	for n, row := range rows {
		if n > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('(')
		for i, v := range row {
			if i > 0 {
				b.WriteString(", ")
			}
			switch v := v.(type) {
			case nil:
				b.WriteString("NULL")
			case int64:
				b.WriteString(strconv.FormatInt(v, 10)) // read faster than a parameter
			case string, []byte:
				args = append(args, v)
				b.WriteString("$" + strconv.Itoa(len(args)))
			default:
				panic(fmt.Sprintf("sqlstore: column %s of a batch is a %T", l.names[i], v))
			}
		}
		b.WriteByte(')')
	}
	b.WriteByte(')')
	return b.String(), args
}
