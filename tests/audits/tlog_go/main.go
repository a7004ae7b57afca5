// Checks the public form of a log with the Go project's own client for tiled logs, golang.org/x/mod/sumdb/tlog.
//
// Usage: tlogcheck URL KEY [OLD_CHECKPOINT]
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"tlogcheck/note"
	"tlogcheck/tlog"
)

const height = 8

func check(err error) {
	if err != nil {
		fmt.Println("BROKEN:", err)
		os.Exit(1)
	}
}

type reader struct{ url string }

func (r reader) Height() int                            { return height }
func (r reader) SaveTiles(tiles []tlog.Tile, d [][]byte) {}

func (r reader) get(path string) ([]byte, error) {
	response, err := http.Get(r.url + "/" + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, response.Status)
	}
	return io.ReadAll(response.Body)
}

func (r reader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	contents := make([][]byte, len(tiles))
	for i, tile := range tiles {
		// The Go checksum database has the height in its paths, which C2SP tlog-tiles leaves out.
		content, err := r.get("tile/" + strings.TrimPrefix(tile.Path(), fmt.Sprintf("tile/%d/", height)))
		if err != nil {
			return nil, err
		}
		contents[i] = content
	}
	return contents, nil
}

func tree(text []byte, key string) tlog.Tree {
	verifier, err := note.NewVerifier(key)
	check(err)
	opened, err := note.Open(text, note.VerifierList(verifier))
	check(err)
	lines := strings.Split(opened.Text, "\n")
	size, err := strconv.ParseInt(lines[1], 10, 64)
	check(err)
	hash, err := tlog.ParseHash(lines[2])
	check(err)
	return tlog.Tree{N: size, Hash: hash}
}

func main() {
	r := reader{os.Args[1]}
	text, err := r.get("checkpoint")
	check(err)
	now := tree(text, os.Args[2])
	hashes := tlog.TileHashReader(now, r)
	checked := int64(0)
	for checked < now.N {
		bundle := tlog.Tile{H: height, L: 0, N: checked / 256, W: int(min(now.N-checked, 256))}
		path := strings.TrimPrefix(bundle.Path(), fmt.Sprintf("tile/%d/0/", height))
		content, err := r.get("tile/entries/" + path)
		check(err)
		for len(content) > 0 {
			length := int(binary.BigEndian.Uint16(content))
			entry := content[2 : 2+length]
			content = content[2+length:]
			proof, err := tlog.ProveRecord(now.N, checked, hashes)
			check(err)
			check(tlog.CheckRecord(proof, now.N, now.Hash, checked, tlog.RecordHash(entry)))
			checked++
		}
	}
	if len(os.Args) > 3 {
		text, err := os.ReadFile(os.Args[3])
		check(err)
		before := tree(text, os.Args[2])
		proof, err := tlog.ProveTree(now.N, before.N, hashes)
		check(err)
		check(tlog.CheckTree(proof, now.N, now.Hash, before.N, before.Hash))
		fmt.Println("continues", before.N)
	}
	fmt.Println("entries", checked)
}
