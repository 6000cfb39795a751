// A whole step of a Llama-family model in one call, on one team of threads.
//
// The structs are filled by engine/runtime/native/model.py, which mirrors them field by field.
#pragma once

#include <omp.h>
#include <vector>

#include "choice.h"
#include "long_rows.h"
#include "matrix.h"
#include "rows.h"

namespace {

// Packed weights, and float32 biases or null.
struct Layer {
  const float *attention_norm, *qk_norm, *mlp_norm;
  Matrix qkv, output, gate_up, down;
  const float *qkv_bias, *output_bias, *gate_up_bias, *down_bias;
};

struct Model {
  Index layers, hidden, intermediate, heads, kv_heads, dim, padded_vocab;
  const Layer *layer;
  const bf16 *embedding;  // [vocab, hidden], or null where the head is the embedding
  Matrix head;
  const float *final_norm, *cosines, *sines;
  float eps, scale;
};

// One ragged batch, as engine/runtime/ragged.py lays it out, and where the results go.
struct Step {
  Index tokens, rows, wanted, table_blocks, layer_numbers, block;
  const Index *ids, *positions, *row_of;   // by flat position
  const Index *starts, *counts, *offsets;  // by row
  const int32_t *tables;                   // [rows, table_blocks]
  const Index *wanted_tokens;
  bf16 *cache;                          // of all layers, `layer_numbers` each
  float *stream;                        // [tokens, hidden]
  Number *normed, *qkv, *mixed, *active;  // [tokens, each size]
  bf16 *logits;                         // [wanted, padded_vocab]
};

inline void copy(const bf16 *from, bf16 *to, Index count) {
  std::memcpy(to, from, count * sizeof(bf16));
}

inline void copy(const float *from, bf16 *to, Index count) {
  for (Index i = 0; i < count; ++i) store(to + i, from[i]);
}

inline void embed(const Model &is, Index id, float *to) {
  if (is.embedding != nullptr) {
    for (Index i = 0; i < is.hidden; ++i) to[i] = load(is.embedding[id * is.hidden + i]);
    return;
  }
  weight_row(is.head, id, is.hidden, to);
}

inline void norm_heads(Number *x, const float *weight, Index heads, Index dim, float eps) {
  float exact[MOST_DIM];
  for (Index head = 0; head < heads; ++head) {
    for (Index i = 0; i < dim; ++i) exact[i] = load(x[head * dim + i]);
    norm_row(exact, weight + head * dim, x + head * dim, dim, eps);
  }
}

class Forward {
 public:
  Forward(const Model &model, const Step &step)
      : is_(model), step_(step), width_(model.heads + 2 * model.kv_heads),
        tile_(std::max<Index>(1, TILE_ROWS / (model.heads / model.kv_heads))),
        layout_{model.heads, model.kv_heads, model.dim, step.block, width_, step.table_blocks,
                model.scale} {
    for (Index row = 0; row < step.rows; ++row) {
      for (Index first = 0; first < step.counts[row]; first += tile_) {
        work_.push_back({row, first, step.counts[row] > 1});
      }
    }
    // what takes longest first, so that none of it is left for the end
    std::stable_sort(work_.begin(), work_.end(), [&](const Rows &a, const Rows &b) {
      if (a.tile != b.tile) return a.tile;
      return step.starts[a.row] + a.first > step.starts[b.row] + b.first;
    });
  }

  // The most there can be: a product has up to two.
  static Index phases(const Model &model) { return 12 * model.layers + 4; }

  // Bytes of the team's room that its products take.
  static Index room(const Model &model, const Step &step) {
    Index most = product_room(model.head, step.wanted, model.hidden);
    for (Index index = 0; index < model.layers; ++index) {
      const Layer &of = model.layer[index];
      most = std::max({most, product_room(of.qkv, step.tokens, model.hidden),
                       product_room(of.output, step.tokens, model.heads * model.dim),
                       product_room(of.gate_up, step.tokens, model.hidden),
                       product_room(of.down, step.tokens, model.intermediate)});
    }
    return most;
  }

  // Called by every thread.
  void run(Member &me) const {
    me.share_rows(step_.tokens, [&](Index token) {
      embed(is_, step_.ids[token], step_.stream + token * is_.hidden);
    });
    for (Index index = 0; index < is_.layers; ++index) layer(me, index);
    if (step_.wanted == 0) return;
    me.share_rows(step_.wanted, [&](Index row) {
      norm_row(step_.stream + step_.wanted_tokens[row] * is_.hidden, is_.final_norm,
               step_.normed + row * is_.hidden, is_.hidden, is_.eps);
    });
    product(me, step_.normed, step_.wanted, is_.hidden, is_.head, is_.padded_vocab,
            Write<bf16>{step_.logits, is_.padded_vocab, nullptr});
  }

 private:
  void layer(Member &me, Index index) const {
    const Layer &of = is_.layer[index];
    const Index tokens = step_.tokens, mixed = is_.heads * is_.dim;
    bf16 *cache = step_.cache + index * step_.layer_numbers;
    norm(me, of.attention_norm);
    product(me, step_.normed, tokens, is_.hidden, of.qkv, width_ * is_.dim,
            Write<Number>{step_.qkv, width_ * is_.dim, of.qkv_bias});
    me.share_rows(tokens, [&](Index token) { place(of, token, cache); });
    attention(me, cache);
    product(me, step_.mixed, tokens, mixed, of.output, is_.hidden,
            Add{step_.stream, is_.hidden, of.output_bias});
    norm(me, of.mlp_norm);
    product(me, step_.normed, tokens, is_.hidden, of.gate_up, 2 * is_.intermediate,
            Activate{step_.active, is_.intermediate, of.gate_up_bias});
    product(me, step_.active, tokens, is_.intermediate, of.down, is_.hidden,
            Add{step_.stream, is_.hidden, of.down_bias});
  }

  void norm(Member &me, const float *weight) const {
    me.share_rows(step_.tokens, [&](Index token) {
      const Index at = token * is_.hidden;
      norm_row(step_.stream + at, weight, step_.normed + at, is_.hidden, is_.eps);
    });
  }

  // Rotates a position's queries and keys; its keys and values go into the cache.
  void place(const Layer &of, Index token, bf16 *cache) const {
    const Index rotating = is_.heads + is_.kv_heads, planes = 2 * is_.kv_heads;
    const Index position = step_.positions[token], angle = position * is_.dim;
    Number *x = step_.qkv + token * width_ * is_.dim;
    if (of.qk_norm != nullptr) norm_heads(x, of.qk_norm, rotating, is_.dim, is_.eps);
    rotate_row(x, is_.cosines + angle, is_.sines + angle, rotating, is_.dim);
    const Index block = table(step_.row_of[token])[position / step_.block];
    for (Index plane = 0; plane < planes; ++plane) {
      const Index cell = (block * planes + plane) * step_.block + position % step_.block;
      copy(x + (is_.heads + plane) * is_.dim, cache + cell * is_.dim, is_.dim);
    }
  }

  void attention(Member &me, const bf16 *cache) const {
    const Index rows = static_cast<Index>(work_.size());
    const Index some = heads_together(layout_, rows, me.threads()), parts = is_.kv_heads / some;
    const auto reads = [&](Index item) {
      if (item >= rows * parts || work_[item / parts].tile) return Reads{};
      const auto [row, first, tile] = work_[item / parts];
      return Reads{table(row), step_.starts[row] + first + 1, item % parts * some, some};
    };
    Ahead ahead(cache, layout_);
    me.share(rows * parts, [&](Index item, Index next) {
      const auto [row, first, tile] = work_[item / parts];
      const Index kv_head = item % parts * some, start = step_.starts[row] + first;
      const Index token = step_.offsets[row] + first;
      const Number *x = step_.qkv + token * width_ * is_.dim;
      Number *out = step_.mixed + token * is_.heads * is_.dim;
      if (!tile) {
        return attend_heads(x, cache, reads(item), reads(next), layout_, ahead, out);
      }
      const Index count = std::min(tile_, step_.counts[row] - first);
      for (Index head = kv_head; head < kv_head + some; ++head) {
        attend_tile(x, cache, table(row), start, count, head, layout_, out);
      }
    });
  }

  const int32_t *table(Index row) const { return step_.tables + row * step_.table_blocks; }

  // Positions of a row that attend together, from its `first`: one that decodes, or a tile.
  struct Rows {
    Index row, first;
    bool tile;
  };

  const Model &is_;
  const Step &step_;
  const Index width_, tile_;
  const Layout layout_;
  std::vector<Rows> work_;
};

inline void forward(const Model &model, const Step &step) {
  static thread_local std::vector<Line> room;
  room.resize(std::max<std::size_t>(room.size(), Forward::room(model, step) / sizeof(Line) + 1));
  const Forward work(model, step);
  Team team(Forward::phases(model), room.data());
#pragma omp parallel
  {
    Member me(team, omp_get_num_threads());
    work.run(me);
  }
}

}  // namespace
