module treeswap/tests/node/reader

go 1.23
