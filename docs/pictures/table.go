package main

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// table is a table of a Markdown file.
type table struct {
	file    string
	columns []string
	rows    [][]string
}

// readTable returns the first table of the file whose first column begins with a text.
func readTable(files fs.FS, file, first string) (table, error) {
	text, err := fs.ReadFile(files, file)
	if err != nil {
		return table{}, fmt.Errorf("read a measured table: %w", err)
	}
	t := table{file: file}
	for line := range strings.Lines(string(text)) {
		cells, is := cellsOf(line)
		switch {
		case is && t.columns != nil:
			t.rows = append(t.rows, cells)
		case is && strings.HasPrefix(cells[0], first):
			t.columns = cells
		case !is && t.columns != nil:
			t.rows = t.rows[1:] // dashes
			return t, nil
		}
	}
	return table{}, fmt.Errorf("%s has no table whose first column begins with %q", file, first)
}

func cellsOf(line string) ([]string, bool) {
	line, is := strings.CutPrefix(strings.TrimSpace(line), "|")
	if !is {
		return nil, false
	}
	cells := strings.Split(strings.TrimSuffix(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells, true
}

// cell returns a cell by the beginning of its row and the name of its column.
func (t table) cell(row, column string) (string, error) {
	for i, c := range t.columns {
		for _, r := range t.rows {
			if c == column && strings.HasPrefix(r[0], row) {
				return r[i], nil
			}
		}
	}
	return "", fmt.Errorf("%s has no row %q with column %q", t.file, row, column)
}

// number is as cell; 0 for a dash.
func (t table) number(row, column string) (int, error) {
	text, err := t.cell(row, column)
	if err != nil || text == "-" {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s, row %q, column %q: %w", t.file, row, column, err)
	}
	return n, nil
}
